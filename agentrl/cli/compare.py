"""`agentrl compare`."""

import shlex
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal

import typer

from agentrl.cli.arguments import JsonFlag
from agentrl.cli.completion import complete_run
from agentrl.cli.console import show_json, show_table, show_text
from agentrl.cli.train import program


def compare(
    a: Annotated[
        Path,
        typer.Argument(
            metavar="A",
            autocompletion=complete_run,
            help="Baseline: a run folder, an evaluation folder, or a report file.",
        ),
    ],
    b: Annotated[
        Path,
        typer.Argument(
            autocompletion=complete_run, metavar="B", help="Candidate: the same kinds of path as A."
        ),
    ],
    *,
    which: Annotated[
        str, typer.Option(help="Evaluation to read from a run: after, before, or step-N.")
    ] = "after",
    which_a: Annotated[
        str | None,
        typer.Option(help="Overrides --which for A, to compare before and after within one run."),
    ] = None,
    common: Annotated[
        bool,
        typer.Option(
            show_default=False,
            help="Compare only the tasks and seeds that both evaluations contain.",
        ),
    ] = False,
    threshold: Annotated[
        float | None, typer.Option(help="Minimum reward of a passing trajectory.")
    ] = None,
    confidence: Annotated[
        float | None,
        typer.Option(
            min=0.01, max=0.9999, help="Confidence level of all intervals; that of A by default."
        ),
    ] = None,
    interval: Annotated[
        Literal["wilson", "bootstrap"], typer.Option(help="Interval method.")
    ] = "wilson",
    show: Annotated[
        int, typer.Option(help="Number of flipped tasks to list in each direction.")
    ] = 10,
    as_json: JsonFlag = False,
) -> None:
    """Compare two policies on the same tasks, paired by task and seed: B against A."""
    from agentrl.evaluation.report import HEADINGS
    from agentrl.evaluation.reports import compare_reports, read_report

    comparison = compare_reports(
        read_report(a, which_a or which),
        read_report(b, which),
        common=common,
        threshold=threshold,
        confidence=confidence,
        interval=interval,
    )
    if as_json:
        show_json(comparison.to_json())
        return
    show_table(HEADINGS, comparison.rows())
    for title, flips in (("gained", comparison.gained), ("lost", comparison.lost)):
        if flips and show > 0:
            show_text()
            rows = [
                (flip.task, flip.prompt, f"{flip.a:.2f}", f"{flip.b:.2f}")
                for flip in islice(flips, show)
            ]
            show_table((title, "task", "A", "B"), rows)
    if show > 0 and (comparison.gained or comparison.lost):
        for folder in filter(Path.is_dir, (a, b)):
            words = shlex.join([program(), "view", str(folder)])
            show_text(f"{words} shows the trajectories")
