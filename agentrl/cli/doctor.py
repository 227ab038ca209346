"""`agentrl doctor`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from agentrl.cli.arguments import Overrides
from agentrl.cli.console import out, show_text


def doctor(
    config_file: Annotated[
        Path | None,
        typer.Argument(metavar="[CONFIG]", help="Check whether this machine can run this config."),
    ] = None,
    overrides: Overrides = None,
) -> None:
    """Show what is installed on this machine and how to get what is missing."""
    if config_file is not None:
        _check(config_file, overrides or [])
        return
    from agentrl.runtime.doctor import examine

    table = Table(show_edge=False)
    for heading in ("part", "", "details", "how to get it"):
        table.add_column(heading, overflow="fold")
    for group, parts in examine():
        table.add_section()
        table.add_row(Text(group, style="bold"))
        for part in parts:
            state = Text("live", style="green") if part.live else Text("missing", style="yellow")
            get_it = "" if part.live else part.get_it
            table.add_row(Text(part.name), state, Text(part.detail), Text(get_it))
    out.print(table)


def _check(config_file: Path, overrides: list[str]) -> None:
    """Raise `ConfigError` for a missing requirement, as `train` would at its start."""
    from agentrl.config.load import load_config
    from agentrl.run.preflight import check_training

    config = load_config(config_file, overrides)
    check_training(config)
    from agentrl.run.build import build_env_factory  # not before: it takes a second

    build_env_factory(config)
    show_text(f"{config_file}: this machine meets all requirements")
