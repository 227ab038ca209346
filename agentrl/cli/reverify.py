"""`agentrl reverify`."""

from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentrl.cli.arguments import Overrides
from agentrl.cli.console import err, out, show_table
from agentrl.cli.progress import watch

if TYPE_CHECKING:
    from agentrl.evaluation.rescore import RescoreResult


class RescoreMethod(StrEnum):
    """Method for scoring trajectories again."""

    auto = "auto"
    record = "record"
    replay = "replay"


class TaskSourceChoice(StrEnum):
    """Whose answers and checker data count."""

    record = "record"
    today = "today"


def reverify(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Of agentrl eval --out, or a run's.")
    ],
    overrides: Overrides = None,
    *,
    how: Annotated[
        RescoreMethod, typer.Option(help="From the record, by replay, or as the environment says.")
    ] = RescoreMethod.auto,
    tasks: Annotated[
        TaskSourceChoice, typer.Option(help="Whose answers count: the record's or today's tasks'.")
    ] = TaskSourceChoice.record,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Score the newest so many groups alone.")
    ] = None,
    show: Annotated[
        int, typer.Option(min=0, help="How many trajectories to list of each kind.")
    ] = 10,
    json: Annotated[
        Path | None, typer.Option("--json", help="Write the new report here, too.")
    ] = None,
) -> None:
    """Score stored trajectories again with today's checker, without running the policy."""
    from agentrl.evaluation.report import HEADINGS
    from agentrl.run.reverify import reverify as score_again
    from agentrl.runtime.atomic_files import write_json

    with watch(err) as progress:
        report = score_again(
            folder,
            overrides or (),
            how=how.value,
            tasks=tasks.value,
            limit=limit,
            progress=progress,
        )
    comparison = report.comparison()
    if comparison is not None:
        show_table(HEADINGS, comparison.rows())
        out.print()
    every = len(report.found)
    rows = [(name, str(count), f"{count / every:.1%}") for name, count in report.verdicts.items()]
    rows += [("groups pruned", str(report.pruned), "")] if report.pruned else []
    rows += [("not among today's tasks", str(report.other_tasks), "")] if report.other_tasks else []
    show_table(("trajectories", "count", "share"), rows)
    for title, kind in (("changed", report.changed), ("no score today", report.unknown)):
        if kind and show:
            out.print()
            listed = islice(kind, show)
            show_table((title, "sample", "was", "is", "why"), map(_row, listed))
    if json is not None:
        write_json(json, report.to_json())


def _row(one: "RescoreResult") -> tuple[str, ...]:
    is_now = one.verdict if one.after is None else f"{one.after:g}"
    was = "" if one.before is None else f"{one.before:g}"
    return one.recording.task.id, str(one.recording.sample), was, is_now, one.why
