"""`agentrl export`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from agentrl.cli.console import err, out


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")],
    *,
    to: Annotated[
        Literal["jsonl", "hf", "atif"],
        typer.Option(help="JSON lines, a Hugging Face dataset, or harbor's ATIF."),
    ] = "jsonl",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The folder to make; RUN.FORMAT here.")
    ] = None,
    split: Annotated[
        Literal["train", "heldout"] | None, typer.Option(help="Of this split alone.")
    ] = None,
    filters: Annotated[
        list[str] | None,
        typer.Option("--filter", help="A condition, such as reward>=0.5; all must hold."),
    ] = None,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="Also token ids, masks and log-probs.")
    ] = False,
) -> None:
    """Write a run's trajectories for others to read."""
    from agentrl.export import export as write

    folder = output or Path(f"{run.resolve().name}.{to}")
    result = write(run, folder, to=to, split=split, filters=filters or (), tokens=tokens)
    out.print(f"{result.written} trajectories are in {folder}", markup=False)
    if result.left_out:
        err.print(f"{result.left_out} were left out", markup=False)
    if result.pruned_groups:
        err.print(
            f"{result.pruned_groups} groups are gone: the run removed their tokens after training; "
            "a run with store.keep=all keeps them",
            markup=False,
        )
