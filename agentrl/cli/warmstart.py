"""`agentrl warmstart`."""

from typing import Annotated

import typer

from agentrl.cli.arguments import ConfigFile, Overrides
from agentrl.cli.console import show_text
from agentrl.cli.progress import show_progress
from agentrl.cli.train import tell_resume
from agentrl.runtime.extras import check_installed


def warmstart(
    config_file: ConfigFile,
    overrides: Overrides = None,
    *,
    resume: Annotated[
        bool,
        typer.Option(show_default=False, help="Go on with one that was interrupted."),
    ] = False,
) -> None:
    """Train the warm-started policy of a config and stop.

    Ctrl-C stops cleanly; --resume goes on from there.
    """
    check_installed("agentrl warmstart", "torch", "transformers")
    from agentrl.config.load import load_config
    from agentrl.run import train

    config = load_config(config_file, overrides or ())
    place = config.run.folder / config.run.name
    with tell_resume("warmstart", config_file, overrides or (), place), show_progress() as progress:
        folder = train.warmstart(config, resume=resume, progress=progress)
    show_text(f"the policy is in {folder}; train from it with policy.path={folder}")
