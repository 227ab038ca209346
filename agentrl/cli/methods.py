"""`agentrl methods`."""

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.padding import Padding
from rich.text import Text

from agentrl.cli.console import out


def methods(
    slot: Annotated[str, typer.Argument(help="One slot; every slot by default.")] = "",
    *,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Every slot, as the tables of the documentation.")
    ] = False,
) -> None:
    """List the methods of the learning half: what each is, its knobs, its needs, its source."""
    from agentrl.learn import catalogue

    slots = catalogue.slots(slot)
    if markdown:
        out.print(catalogue.markdown(), markup=False, highlight=False)
        return
    for each in slots:
        out.print(Text(f"learn.{each.key}", style="bold"))
        for row in catalogue.rows(each):
            _show(row)
        out.print()
    out.print("every slot also takes a function of yours: name: custom, function: package.module:f")


def _show(row: Sequence[str]) -> None:
    """Write a method: its name, what it is, and one line for each of the other headings."""
    from agentrl.learn import catalogue

    name, meaning, *others = row
    out.print(Text(f"  {name}"), soft_wrap=False)
    out.print(Padding(Text(meaning), (0, 0, 0, 6), expand=False), soft_wrap=False)
    for heading, cell in zip(catalogue.HEADINGS[2:], others, strict=True):
        if cell:
            line = Text(f"{heading}: ", style="dim").append(cell, style="not dim")
            out.print(Padding(line, (0, 0, 0, 6), expand=False), soft_wrap=False)
