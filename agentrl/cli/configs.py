"""`agentrl configs`."""

import json
from typing import Annotated

import typer

from agentrl.cli.console import show_table, show_text


def configs(
    *,
    as_json: Annotated[
        bool, typer.Option("--json/--no-json", show_default=False, help="Print the list as JSON.")
    ] = False,
) -> None:
    """List the configs that come with agentrl; a command takes the name in the place of a file."""
    from agentrl.config.packaged import list_configs

    found = [(each.name, each.describe(), str(each.file)) for each in list_configs()]
    if as_json:
        keys = ("name", "description", "file")
        show_text(json.dumps([dict(zip(keys, row, strict=True)) for row in found], indent=2))
        return
    show_table(("name", "what it is"), [row[:2] for row in found])
