"""`agentrl methods`."""

from typing import Annotated

import typer

from agentrl.cli.console import out, show_table


def methods(
    slot: Annotated[str, typer.Argument(help="One slot; every slot by default.")] = "",
    *,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Every slot, as the tables of the documentation.")
    ] = False,
) -> None:
    """List the methods of the learning half: what each is, its knobs, its needs, its source."""
    from agentrl.learn import catalogue

    chosen = catalogue.slots(slot)
    if markdown:
        out.print(catalogue.markdown(), markup=False, highlight=False)
        return
    for each in chosen:
        show_table(catalogue.HEADINGS, catalogue.rows(each), title=f"learn.{each.key}")
        out.print()
    out.print("every slot also takes a function of yours: name: custom, function: package.module:f")
