"""`agentrl config explain` and `agentrl config show`."""

from typing import Annotated

import typer

from agentrl.cli.arguments import ConfigFile, Overrides
from agentrl.cli.console import out

app = typer.Typer(help="What the keys of a config mean, and what a config comes to.")


@app.command("explain")
def explain(
    key: Annotated[str, typer.Argument(help="A dotted key; everything by default.")] = "",
    *,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Every key, as the tables of the documentation.")
    ] = False,
) -> None:
    """Say what a key wants, its default and its meaning."""
    from agentrl.config import explain as explained

    text = explained.markdown() if markdown else explained.explain(key)
    out.print(text, markup=False, highlight=False)


@app.command("show")
def show(config_file: ConfigFile, overrides: Overrides = None) -> None:
    """Print the complete config a file and overrides come to."""
    from agentrl.config.document import dump
    from agentrl.config.load import load_config
    from agentrl.config.schema import plain

    config = load_config(config_file, overrides or ())
    out.print(dump(plain(config)), markup=False, highlight=False, end="")
