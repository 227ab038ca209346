"""`agentrl envs`."""

from typing import Annotated

import typer

from agentrl.cli.console import out, show_table


def envs(
    search: Annotated[
        str,
        typer.Option(
            help="Show only environments whose id, description, or entry point contains this text."
        ),
    ] = "",
) -> None:
    """List the registered environments."""
    from agentrl.registry import registry

    query = search.lower()
    specs = [
        spec
        for spec in registry.values()
        if query in f"{spec.id} {spec.description} {spec.entry_point}".lower()
    ]
    if not specs:
        out.print(f"none of the {len(registry)} environments matches {search!r}", markup=False)
        raise typer.Exit(1)
    show_table(
        ("id", "what it is", "defaults"),
        [(s.id, s.description, str(dict(s.kwargs)) if s.kwargs else "") for s in specs],
    )
