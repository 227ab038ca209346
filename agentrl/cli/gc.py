"""`agentrl gc`."""

from typing import Annotated

import typer

from agentrl.cli.arguments import JsonFlag
from agentrl.cli.console import err, show_json, show_table, show_text

_WORDS = {
    "found": "would be removed",
    "removed": "removed",
    "forgotten": "forgotten",
    "kept": "kept",
    "failed": "LEFT",
}


def gc(
    *,
    dry_run: Annotated[
        bool,
        typer.Option(show_default=False, help="List what would be removed without removing it."),
    ] = False,
    everything: Annotated[
        bool,
        typer.Option(
            "--all/--no-all",
            show_default=False,
            help="Also remove resources whose owner is unknown.",
        ),
    ] = False,
    forget: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SOCKET",
            show_default=False,
            help="Forget the containers of an engine that is gone for good. Repeat for more.",
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Remove what killed processes left: containers, processes, cgroups, directories.

    Nothing of a live process is touched. Exits 1 when something could not be removed or looked at.
    """
    from agentrl.runtime.leftovers import collect

    leftovers = list(collect(dry_run=dry_run, unknown_too=everything, lost_engines=forget or ()))
    if as_json:
        show_json(leftovers)
    elif not leftovers:
        show_text("nothing to clean up")
    else:
        show_table(
            ("kind", "name", "made by", "", ""),
            [(f.kind, f.name, f.owner, _WORDS[f.outcome], f.detail) for f in leftovers],
        )
    if any(f.outcome == "kept" for f in leftovers):
        show_text("--all also removes what was kept; first make sure that it is not in use", err)
    if failed := sum(f.outcome == "failed" for f in leftovers):
        show_text(
            f"{failed} could not be removed or inspected; fix the cause and run agentrl gc again, "
            "with --forget SOCKET for an engine that is gone for good",
            err,
        )
        raise typer.Exit(1)
