"""`agentrl methods`."""

import shutil
import textwrap
from collections.abc import Sequence
from typing import Annotated

import typer

from agentrl.cli.arguments import JsonFlag
from agentrl.cli.console import out, show_json, show_text
from agentrl.errors import ConfigError

INDENT = " " * 6


def methods(
    slot: Annotated[str, typer.Argument(help="Slot to list; all slots by default.")] = "",
    *,
    markdown: Annotated[
        bool, typer.Option(show_default=False, help="Print all slots as Markdown tables.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """List the training methods of each slot, with their keys, requirements, and sources."""
    from agentrl.learn import catalogue

    slots = catalogue.slots(slot)
    if markdown and as_json:
        raise ConfigError("--markdown and --json exclude each other; leave one of them out")
    if as_json:
        show_json([method for each in slots for method in catalogue.to_json(each)])
        return
    if markdown:
        show_text(catalogue.markdown())
        return
    for each in slots:
        show_text(out.paint(f"learn.{each.key}", "bold"))
        for row in catalogue.rows(each):
            _show(row)
        show_text()
    show_text("every slot also accepts your own function: name: custom, function: package.module:f")


def _show(row: Sequence[str]) -> None:
    from agentrl.learn import catalogue

    name, meaning, *others = row
    show_text(f"  {name}")
    _show_wrapped(meaning)
    for heading, cell in zip(catalogue.HEADINGS[2:], others, strict=True):
        if cell:
            _show_wrapped(f"{heading}: {cell}")


def _show_wrapped(text: str) -> None:
    """Write an indented paragraph, which only a terminal gets in lines of its own width."""
    if out.is_terminal:
        width = shutil.get_terminal_size().columns
        text = textwrap.fill(text, width, initial_indent=INDENT, subsequent_indent=INDENT)
    show_text(text if out.is_terminal else f"{INDENT}{text}")
