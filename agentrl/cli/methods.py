"""`agentrl methods`."""

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.padding import Padding
from rich.text import Text

from agentrl.cli.console import out, show_text


def methods(
    slot: Annotated[str, typer.Argument(help="Slot to list; all slots by default.")] = "",
    *,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print all slots as Markdown tables.")
    ] = False,
) -> None:
    """List the training methods of each slot, with their keys, requirements, and sources."""
    from agentrl.learn import catalogue

    slots = catalogue.slots(slot)
    if markdown:
        show_text(catalogue.markdown())
        return
    for each in slots:
        out.print(Text(f"learn.{each.key}", style="bold"))
        for row in catalogue.rows(each):
            _show(row)
        out.print()
    out.print("every slot also accepts your own function: name: custom, function: package.module:f")


def _show(row: Sequence[str]) -> None:
    from agentrl.learn import catalogue

    name, meaning, *others = row
    out.print(Text(f"  {name}"), soft_wrap=False)
    out.print(Padding(Text(meaning), (0, 0, 0, 6), expand=False), soft_wrap=False)
    for heading, cell in zip(catalogue.HEADINGS[2:], others, strict=True):
        if cell:
            line = Text(f"{heading}: ", style="dim").append(cell, style="not dim")
            out.print(Padding(line, (0, 0, 0, 6), expand=False), soft_wrap=False)
