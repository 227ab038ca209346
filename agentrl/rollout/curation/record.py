"""Record of a task, from its finished groups. Failures are no observation."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from agentrl.rollout.curation.outcomes import GroupOutcome, score, sort_groups


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStatistics:
    """The statistics of one task."""

    groups: int = 0
    trajectories: int = 0
    """With a reward."""
    recent: tuple[float, ...] = ()
    """Scores of the latest trajectories, the newest last."""
    longest_success_turns: int = 0
    """0 before the first success."""
    last_step: int = -1


UNSEEN = TaskStatistics()


def observe(
    records: Mapping[str, TaskStatistics],
    groups: Iterable[GroupOutcome],
    *,
    window: int,
    success_above: float,
) -> dict[str, TaskStatistics]:
    """Return the records after a step; `groups` may come in any order.

    A success is a reward above `success_above`. Groups without any reward leave no trace.
    """
    after = dict(records)
    for group in sort_groups(groups):
        if not group.valid:
            continue
        old = after.get(group.task_id, UNSEEN)
        scores = tuple(score(reward) for reward in group.rewards)
        lengths = [r.turns for r in group.valid if (r.reward or 0.0) > success_above]
        after[group.task_id] = TaskStatistics(
            groups=old.groups + 1,
            trajectories=old.trajectories + len(scores),
            recent=(old.recent + scores)[-window:],
            longest_success_turns=max([old.longest_success_turns, *lengths]),
            last_step=max(old.last_step, group.step),
        )
    return after
