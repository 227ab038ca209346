"""`agentrl branches`."""

from collections import Counter
from typing import Annotated

import typer

from agentrl.cli.arguments import JsonFlag, RunFolder
from agentrl.cli.console import show_json, show_table, show_text


def branches(
    run: RunFolder,
    *,
    task: Annotated[str | None, typer.Option(help="Show only this task.")] = None,
    step: Annotated[int | None, typer.Option(min=1, help="Show only this step.")] = None,
    why: Annotated[
        bool,
        typer.Option(
            show_default=False,
            help="Explain every branch decision: why a turn did or did not branch.",
        ),
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Show where the trajectories of a run branched."""
    from agentrl.errors import ConfigError
    from agentrl.rollout.branching.decision import explain, format_path
    from agentrl.rollout.branching.log import LoggedDecision, read_log

    groups: dict[tuple[int, int, str], Counter[str]] = {}
    explanations: list[str] = []
    for one in read_log(run):
        name = one.decision.task_id if isinstance(one, LoggedDecision) else one.task
        if task not in (None, name) or step not in (None, one.step):
            continue
        counts = groups.setdefault((one.step, one.group, name), Counter())
        where = f"step {one.step}, group {one.group}, task {name}"
        if isinstance(one, LoggedDecision):
            counts[one.decision.reason] += 1
            counts["branches"] += len(one.decision.children)
            explanations.append(f"{where}, {explain(one.decision)}")
            continue
        for copied in one.copies:
            counts["failed copies"] += bool(copied.error)
            if copied.error:
                place = f"trajectory {format_path(copied.origin.path)}, turn {copied.origin.turn}"
                explanations.append(f"{where}, {place}: environment not forked: {copied.error}")
    if not groups:
        raise ConfigError(f"{run} has no group for that task or step; omit --task and --step")
    if as_json:
        group_counts = [
            {"step": step, "group": group, "task": name, "counts": counts}
            for (step, group, name), counts in sorted(groups.items())
        ]
        show_json({"groups": group_counts, **({"decisions": explanations} if why else {})})
        return
    if why:
        show_text("\n".join(explanations))
        return
    reasons = sorted({name for counts in groups.values() for name in counts} - {"branched"})
    headings = ("task", "step", "group", *reasons)
    rows = [
        (name, str(step), str(group), *(str(counts[reason]) for reason in reasons))
        for (step, group, name), counts in sorted(groups.items())
    ]
    show_table(headings, rows)
