"""`agentrl eval`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentrl.cli.arguments import Overrides, writable
from agentrl.cli.console import err, show_table
from agentrl.cli.progress import watch
from agentrl.errors import ConfigError

if TYPE_CHECKING:
    from agentrl.evaluation.endpoint import HttpEndpoint


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
    player: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Evaluate a player without a model: gold, random, or your function as "
            "module:function.",
        ),
    ] = None,
    json: Annotated[
        Path | None, typer.Option("--json", help="Write the whole report here, too.")
    ] = None,
) -> None:
    """Evaluate a policy on held-out tasks."""
    from agentrl.config.load import load_config
    from agentrl.runtime.atomic_files import write_json

    writable(json, "--json")
    http_endpoint = None if endpoint is None and model is None else endpoint_of(endpoint, model)
    if target.is_dir():
        if http_endpoint is None and player is None:
            checkpoint = checkpoint_of(target, checkpoint)
        target = target / "config.yaml"
    elif not target.exists() and target.suffix not in {".yaml", ".yml"}:
        raise _no_target(target)
    config = load_config(target, overrides or ())
    with watch(err) as progress:
        progress.say(f"{config.env.id}, {config.evaluate.tasks} held-out tasks")
        from agentrl.evaluation.report import HEADINGS
        from agentrl.run import evaluate  # after the line: it takes seconds

        report = evaluate.evaluate(
            config,
            checkpoint=checkpoint,
            progress=progress,
            out=out,
            resume=resume,
            endpoint=http_endpoint,
            player=player,
        )
    show_table(HEADINGS, report.rows())
    if cut := report.overall.outcomes.get("truncated_tokens", 0):
        err.print(
            f"{cut} trajectories ran out of room for tokens: raise engine.context_tokens "
            f"({config.engine.context_tokens}) to let them end",
            markup=False,
            highlight=False,
        )
    if json is not None:
        write_json(json, report.to_json())


def endpoint_of(url: str | None, model: str | None) -> "HttpEndpoint":
    """Return the endpoint that two options name."""
    from agentrl.evaluation.endpoint import HttpEndpoint

    return HttpEndpoint(url=url or "", model=model or "")


def checkpoint_of(run: Path, named: Path | None) -> Path:
    """Return a checkpoint of a run: the newest, or the named one, by its path or by its name.

    Raises `ConfigError` for a name that is none. `OWNER/NAME` is left to the Hugging Face hub.
    """
    if named is None:
        return newest_checkpoint(run)
    inside = run / "checkpoints" / named
    if named.exists() or len(named.parts) == 2:
        return named
    if inside.is_dir():
        return inside
    names = sorted(path.name for path in (run / "checkpoints").glob("step-*"))
    raise ConfigError(
        f"--checkpoint is {named}, and there is no such folder; {run} has "
        f"{', '.join(names) or 'no checkpoints'}"
    )


def _no_target(target: Path) -> ConfigError:
    runs = sorted(str(path.parent) for path in target.parent.glob("*/config.yaml"))
    return ConfigError(
        f"{target}: no such run, and no such config file; "
        + (f"there are the runs {', '.join(runs)}" if runs else "agentrl train makes a run")
    )


def newest_checkpoint(run: Path) -> Path:
    """Return the newest checkpoint in a run's folder."""
    from agentrl.learn.checkpoint import latest

    checkpoint = latest(run / "checkpoints")
    if checkpoint is None:
        raise ConfigError(
            f"{run} has no checkpoint to evaluate; train it, or name one with --checkpoint"
        )
    return checkpoint
