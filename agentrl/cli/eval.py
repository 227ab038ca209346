"""`agentrl eval`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentrl.cli.arguments import Overrides
from agentrl.cli.console import err, show_table
from agentrl.cli.progress import watch

if TYPE_CHECKING:
    from agentrl.evaluation.endpoint import Endpoint


def evaluate(
    target: Annotated[
        Path, typer.Argument(metavar="CONFIG|RUN", help="A config file, or a run's folder.")
    ],
    overrides: Overrides = None,
    *,
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="Checkpoint to evaluate; the newest of a RUN by default."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Keep every trajectory and the report in this folder.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Play what is missing in --out, and what broke.")
    ] = False,
    endpoint: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Evaluate what answers OpenAI's chat completions there, http://HOST:PORT/v1 say; "
            "the key is that of OPENAI_API_KEY.",
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Name of the model at --endpoint.")] = None,
    json: Annotated[
        Path | None, typer.Option("--json", help="Write the whole report here, too.")
    ] = None,
) -> None:
    """Evaluate a policy on held-out tasks."""
    from agentrl.atomic import write_json
    from agentrl.config.load import load_config
    from agentrl.evaluation import policy
    from agentrl.evaluation.report import HEADINGS

    asked = None if endpoint is None and model is None else endpoint_of(endpoint, model)
    if target.is_dir():
        if asked is None:
            checkpoint = checkpoint or newest_checkpoint(target)
        target = target / "config.yaml"
    config = load_config(target, overrides or ())
    with watch(err) as progress:
        report = policy.evaluate(
            config,
            checkpoint=checkpoint,
            progress=progress,
            out=out,
            resume=resume,
            endpoint=asked,
        )
    show_table(HEADINGS, report.rows())
    if json is not None:
        write_json(json, report.to_json())


def endpoint_of(url: str | None, model: str | None) -> "Endpoint":
    """Return the endpoint that two options name."""
    from agentrl.evaluation.endpoint import Endpoint

    return Endpoint(url=url or "", model=model or "")


def newest_checkpoint(run: Path) -> Path:
    """Return the newest checkpoint in a run's folder."""
    from agentrl.errors import ConfigError
    from agentrl.learn.checkpoint import latest

    found = latest(run / "checkpoints")
    if found is None:
        raise ConfigError(
            f"{run} has no checkpoint to evaluate; train it, or name one with --checkpoint"
        )
    return found
