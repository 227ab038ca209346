"""`agentrl eval`."""

from pathlib import Path
from typing import Annotated

import typer

from agentrl.cli.arguments import Overrides
from agentrl.cli.console import err, show_table
from agentrl.cli.progress import watch


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
    json: Annotated[
        Path | None, typer.Option("--json", help="Write the whole report here, too.")
    ] = None,
) -> None:
    """Evaluate a policy on held-out tasks."""
    from agentrl.atomic import write_json
    from agentrl.config.load import load_config
    from agentrl.evaluation import policy
    from agentrl.evaluation.report import HEADINGS

    if target.is_dir():
        checkpoint = checkpoint or newest_checkpoint(target)
        target = target / "config.yaml"
    config = load_config(target, overrides or ())
    with watch(err) as progress:
        report = policy.evaluate(
            config, checkpoint=checkpoint, progress=progress, out=out, resume=resume
        )
    show_table(HEADINGS, report.rows())
    if json is not None:
        write_json(json, report.to_json())


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
