"""`agentrl doctor`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from agentrl.cli.arguments import Overrides
from agentrl.cli.console import out


def doctor(
    config_file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[CONFIG]", help="Say whether this machine has what this config needs."
        ),
    ] = None,
    overrides: Overrides = None,
) -> None:
    """Say what this machine has, and how to get what it lacks."""
    if config_file is not None:
        _check(config_file, overrides or [])
        return
    from agentrl.runtime.doctor import examine

    table = Table(show_edge=False)
    for heading in ("part", "", "what was found", "to get it"):
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
    """Raise `ConfigError` for what the config needs and is not here, as `train` would at once."""
    from agentrl.config.load import load_config
    from agentrl.run.preflight import check_training

    config = load_config(config_file, overrides)
    check_training(config)
    from agentrl.run.build import build_env_factory  # not before: it takes a second

    build_env_factory(config)
    out.print(f"{config_file}: this machine has what it needs", markup=False, highlight=False)
