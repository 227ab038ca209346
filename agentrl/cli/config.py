"""`agentrl config explain` and `agentrl config show`."""

from typing import Annotated

import typer

from agentrl.cli.arguments import ConfigFile, JsonFlag, Overrides
from agentrl.cli.completion import complete_key
from agentrl.cli.console import show_json, show_text
from agentrl.errors import ConfigError

app = typer.Typer(help="Explain config keys and print resolved configs.")


@app.command("explain")
def explain(
    key: Annotated[
        str,
        typer.Argument(
            autocompletion=complete_key,
            help="Dotted key; all keys by default.",
        ),
    ] = "",
    *,
    markdown: Annotated[
        bool, typer.Option(show_default=False, help="Print all keys as Markdown tables.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Show the type, default, and meaning of a config key."""
    from agentrl.config import explain as explained

    if markdown and as_json:
        raise ConfigError("--markdown and --json exclude each other; leave one of them out")
    if as_json:
        show_json(explained.to_json(key))
    else:
        show_text(explained.markdown() if markdown else explained.explain(key))


@app.command("show")
def show(
    config_file: ConfigFile, overrides: Overrides = None, *, as_json: JsonFlag = False
) -> None:
    """Print the resolved config of a file and its overrides."""
    from agentrl.config.document import dump
    from agentrl.config.load import load_config
    from agentrl.config.schema import plain

    config = load_config(config_file, overrides or ())
    if as_json:
        show_json(plain(config))
    else:
        show_text(dump(plain(config)).removesuffix("\n"))
