"""`agentrl warmstart`."""

from typing import Annotated

import typer

from agentrl.cli.arguments import ConfigFile, Overrides
from agentrl.cli.console import show_text
from agentrl.cli.progress import watch
from agentrl.runtime.extras import check_installed


def warmstart(
    config_file: ConfigFile,
    overrides: Overrides = None,
    *,
    resume: Annotated[
        bool,
        typer.Option(show_default=False, help="Begin anew in the folder of one that was killed."),
    ] = False,
) -> None:
    """Train the warm-started policy of a config and stop."""
    check_installed("agentrl warmstart", "torch", "transformers")
    from agentrl.config.load import load_config
    from agentrl.run import train

    config = load_config(config_file, overrides or ())
    with watch() as progress:
        folder = train.warmstart(config, resume=resume, progress=progress)
    show_text(f"the policy is in {folder}; train from it with policy.path={folder}")
