"""`agentrl config explain` and `agentrl config show`."""

from typing import Annotated

import typer

from agentrl.cli.arguments import ConfigFile, Overrides
from agentrl.cli.console import out, show_text

app = typer.Typer(help="Explain config keys and print resolved configs.")


@app.command("explain")
def explain(
    key: Annotated[str, typer.Argument(help="Dotted key; all keys by default.")] = "",
    *,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print all keys as Markdown tables.")
    ] = False,
) -> None:
    """Show the type, default, and meaning of a config key."""
    from agentrl.config import explain as explained

    show_text(explained.markdown() if markdown else explained.explain(key))


@app.command("show")
def show(config_file: ConfigFile, overrides: Overrides = None) -> None:
    """Print the resolved config of a file and its overrides."""
    from agentrl.config.document import dump
    from agentrl.config.load import load_config
    from agentrl.config.schema import plain

    config = load_config(config_file, overrides or ())
    out.print(dump(plain(config)), markup=False, highlight=False, end="")
