"""`agentrl reverify`."""

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from agentrl.cli.arguments import JsonFlag, Overrides
from agentrl.cli.console import show_json, show_table, show_text
from agentrl.cli.progress import show_progress

if TYPE_CHECKING:
    from agentrl.evaluation.rescore import RescoreResult


def reverify(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER", help="Evaluation folder (agentrl eval --out) or run folder."
        ),
    ],
    overrides: Overrides = None,
    *,
    how: Annotated[
        Literal["auto", "record", "replay"],
        typer.Option(
            help=(
                "Method: from the stored record, by replaying the actions, or the environment's "
                "choice."
            )
        ),
    ] = "auto",
    tasks: Annotated[
        Literal["record", "today"],
        typer.Option(
            help="Task definitions to use: those in the record, or the environment's current ones."
        ),
    ] = "record",
    limit: Annotated[
        int | None, typer.Option(min=1, help="Re-score only this many of the newest groups.")
    ] = None,
    show: Annotated[
        int, typer.Option(min=0, help="Number of trajectories to list of each kind.")
    ] = 10,
    as_json: JsonFlag = False,
) -> None:
    """Re-score stored trajectories with the current verifier, without running the policy."""
    from agentrl.evaluation.report import HEADINGS
    from agentrl.run.reverify import reverify as score_again

    with show_progress() as progress:
        report = score_again(
            folder,
            overrides or (),
            how=how,
            tasks=tasks,
            limit=limit,
            progress=progress,
        )
    if as_json:
        show_json(report.to_json())
        return
    comparison = report.comparison()
    if comparison is not None:
        show_table(HEADINGS, comparison.rows())
        show_text()
    every = len(report.found)
    rows = [(name, str(count), f"{count / every:.1%}") for name, count in report.verdicts.items()]
    left_out = {"groups pruned": report.pruned, "not among the current tasks": report.other_tasks}
    rows += [(name, str(count), "") for name, count in left_out.items() if count]
    show_table(("trajectories", "count", "share"), rows)
    for title, kind in (("changed", report.changed), ("no score now", report.unknown)):
        if kind and show:
            show_text()
            listed = islice(kind, show)
            show_table((title, "sample", "was", "is", "why"), map(_row, listed))


def _row(one: "RescoreResult") -> tuple[str, ...]:
    is_now = one.verdict if one.after is None else f"{one.after:g}"
    was = "" if one.before is None else f"{one.before:g}"
    return one.recording.task.id, str(one.recording.sample), was, is_now, one.why
