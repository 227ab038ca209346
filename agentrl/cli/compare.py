"""`agentrl compare`."""

from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from agentrl.cli.console import out, show_table


class IntervalMethod(StrEnum):
    """Method for the intervals."""

    wilson = "wilson"
    bootstrap = "bootstrap"


def compare(
    a: Annotated[
        Path, typer.Argument(metavar="A", help="A run's folder, an evaluation's, or a report.")
    ],
    b: Annotated[Path, typer.Argument(metavar="B", help="The same of what A is compared with.")],
    *,
    which: Annotated[
        str, typer.Option(help="Evaluation of a run: after, before or step-20.")
    ] = "after",
    which_a: Annotated[
        str | None, typer.Option(help="The same for A alone: before against after of one run.")
    ] = None,
    common: Annotated[
        bool, typer.Option("--common", help="Compare what both have, leaving out the rest.")
    ] = False,
    threshold: Annotated[
        float | None, typer.Option(help="A trajectory passes from this reward on.")
    ] = None,
    confidence: Annotated[
        float | None,
        typer.Option(min=0.01, max=0.9999, help="Of every interval; A's own by default."),
    ] = None,
    interval: Annotated[
        IntervalMethod, typer.Option(help="How intervals are made.")
    ] = IntervalMethod.wilson,
    show: Annotated[int, typer.Option(help="How many flipped tasks to list each way.")] = 10,
    json: Annotated[
        Path | None, typer.Option("--json", help="Write the whole comparison here, too.")
    ] = None,
) -> None:
    """Compare two evaluations of the same tasks, paired by task and seed; B against A."""
    from agentrl.evaluation.report import HEADINGS
    from agentrl.evaluation.reports import compare_reports, read_report
    from agentrl.runtime.atomic_files import write_json

    comparison = compare_reports(
        read_report(a, which_a or which),
        read_report(b, which),
        common=common,
        threshold=threshold,
        confidence=confidence,
        interval=interval.value,
    )
    show_table(HEADINGS, comparison.rows())
    for title, flips in (("gained", comparison.gained), ("lost", comparison.lost)):
        if flips and show > 0:
            out.print()
            rows = [
                (flip.task, flip.prompt, f"{flip.a:.2f}", f"{flip.b:.2f}")
                for flip in islice(flips, show)
            ]
            show_table((title, "task", "A", "B"), rows)
    if show > 0 and (comparison.gained or comparison.lost):
        for folder in filter(Path.is_dir, (a, b)):
            out.print(f"agentrl view {folder} shows its trajectories", markup=False)
    if json is not None:
        write_json(json, comparison.to_json())
