"""`agentrl configs`."""

from agentrl.cli.arguments import JsonFlag
from agentrl.cli.console import show_json, show_table


def configs(*, as_json: JsonFlag = False) -> None:
    """List the configs that come with agentrl; a command takes the name in the place of a file."""
    from agentrl.config.packaged import list_configs

    entries = [(each.name, each.describe(), str(each.file)) for each in list_configs()]
    if as_json:
        keys = ("name", "description", "file")
        show_json([dict(zip(keys, row, strict=True)) for row in entries])
    else:
        show_table(("name", "what it is"), [row[:2] for row in entries])
