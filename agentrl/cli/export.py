"""`agentrl export`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from agentrl.cli.arguments import RunFolder
from agentrl.cli.console import err, show_text


def export(
    run: RunFolder,
    *,
    to: Annotated[
        Literal["jsonl", "hf", "atif"],
        typer.Option(
            help="Format: JSON Lines (jsonl), a Hugging Face dataset (hf), or Harbor's ATIF (atif)."
        ),
    ] = "jsonl",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Folder to create; RUN.FORMAT in the working directory by default.",
        ),
    ] = None,
    split: Annotated[
        Literal["train", "heldout"] | None, typer.Option(help="Export only this split.")
    ] = None,
    filters: Annotated[
        list[str] | None,
        typer.Option("--filter", help="Condition, such as reward>=0.5; repeat to require several."),
    ] = None,
    tokens: Annotated[
        bool, typer.Option(show_default=False, help="Include token ids, masks, and log-probs.")
    ] = False,
) -> None:
    """Export the trajectories of a run to a portable format."""
    from agentrl.export import export as write

    folder = output or Path(f"{run.resolve().name}.{to}")
    try:
        result = write(run, folder, to=to, split=split, filters=filters or (), tokens=tokens)
    except OSError as error:
        error.filename = error.filename or str(folder)  # a full disk names none
        raise
    show_text(f"exported {result.written} trajectories to {folder}")
    if result.left_out:
        show_text(f"{result.left_out} were left out: filtered, or not representable as {to}", err)
    if result.pruned_groups:
        show_text(
            f"{result.pruned_groups} groups could not be exported: the run deleted their tokens "
            "after training; set store.keep=all to keep them in future runs",
            err,
        )
