"""Allocation of trajectories to tasks, and of turns to each trajectory.

Sources: DART (arXiv 2509.23866; the length cap follows the paper, the code lacks it) and DARS
(arXiv 2508.13755), with their codes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from agentrl.rollout.curation.outcomes import GroupOutcome, mean, success_rate
from agentrl.rollout.curation.record import TaskStatistics

DarsForm = Literal["equal", "hardness"]
_HAIR = 1e-9
"""Below the smallest step that matters; keeps 1.1 x 10 at 11 when it is rounded up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAllotment:
    """Allocation of one task: its trajectories and their turns."""

    trajectories: int
    max_turns: int


class RolloutAllocation(Protocol):
    """Decides per task. Pure: everything it knows is in its arguments and its knobs."""

    @property
    def window(self) -> int:
        """Number of a task's latest scores that count; 0 keeps no records of tasks."""
        ...

    @property
    def by_step(self) -> bool:
        """True when `more` has to see all groups of a step at once."""
        ...

    def first(self, record: TaskStatistics, *, base: int, max_turns: int) -> TaskAllotment:
        """Return a task's first allotment; `base` and `max_turns` are the run's."""
        ...

    def more(self, groups: Sequence[GroupOutcome], *, base: int) -> list[int]:
        """Return the number of trajectories added to each group, all of whose have ended.

        Asked again when those have ended, too.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedAllocator:
    """The same for every task."""

    @property
    def window(self) -> int:
        return 0

    @property
    def by_step(self) -> bool:
        return False

    def first(self, record: TaskStatistics, *, base: int, max_turns: int) -> TaskAllotment:
        return TaskAllotment(trajectories=base, max_turns=max_turns)

    def more(self, groups: Sequence[GroupOutcome], *, base: int) -> list[int]:
        return [0] * len(groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class DartAllocator:
    """DART: fewer trajectories for nearly solved tasks, and at most a bit longer than a success."""

    threshold: float = 0.6
    """Success rate from which a task gets fewer; the released code sets 1.0."""
    minimum: int = 1
    """Fewest trajectories; with rewards up to 1 the formula itself never goes below 2."""
    window: int = 8
    length_slack: float | None = 1.5
    """Turn cap over the longest success; 1.0 is the paper's, null leaves the run's cap (code)."""

    @property
    def by_step(self) -> bool:
        return False

    def first(self, record: TaskStatistics, *, base: int, max_turns: int) -> TaskAllotment:
        rate = find_recent_rate(record, window=self.window)
        longest, slack = record.longest_success_turns, self.length_slack
        return TaskAllotment(
            trajectories=count_dart_rollouts(
                rate, base=base, threshold=self.threshold, minimum=self.minimum
            ),
            max_turns=max_turns
            if slack is None
            else cap_dart_turns(longest, limit=max_turns, slack=slack),
        )

    def more(self, groups: Sequence[GroupOutcome], *, base: int) -> list[int]:
        return [0] * len(groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class DarsAllocator:
    """DARS: a second phase for tasks that succeed less than half of the time."""

    form: DarsForm = "equal"
    """Lift hard tasks to equal mass, or in proportion to their hardness."""
    max_trajectories: int | None = None
    """Limit over both phases; 4 (equal) or 8 (hardness) times the group size by default."""
    normalise_std: bool = False
    """True when the advantage divides by the standard deviation; decides a group's mass."""
    budget_s: float | None = None
    """Most seconds of trajectories that a second phase may add, by the first phase's mean."""

    @property
    def window(self) -> int:
        return 0

    @property
    def by_step(self) -> bool:
        return False

    def limit(self, base: int) -> int:
        """Return the most trajectories one group may have."""
        factor = 4 if self.form == "equal" else 8
        return self.max_trajectories or factor * base

    def first(self, record: TaskStatistics, *, base: int, max_turns: int) -> TaskAllotment:
        return TaskAllotment(trajectories=base, max_turns=max_turns)

    def more(self, groups: Sequence[GroupOutcome], *, base: int) -> list[int]:
        return [self.count_extra(group, base=base) for group in groups]

    def count_extra(self, group: GroupOutcome, *, base: int) -> int:
        """Return the second phase of a group that has not had it.

        0 for a group of failures only, which measured nothing.
        """
        rate = success_rate(group)
        if rate is None or group.asked > base:
            return 0
        more = count_dars_extra(
            rate,
            size=len(group.valid),
            base=base,
            limit=self.limit(base),
            form=self.form,
            normalise_std=self.normalise_std,
        )
        seconds = mean(result.seconds for result in group.valid)
        if self.budget_s is None or not seconds:
            return more
        room = self.budget_s / seconds
        return more if room >= more else int(room)


def count_dart_rollouts(
    success_rate: float | None, *, base: int, threshold: float, minimum: int
) -> int:
    """Return a task's number of trajectories: `base` below `threshold`, then fewer.

    Never more than `base`: with a threshold under 9 / (base + 7) the formula would ask for more.
    The paper's threshold is 0.6; the code's loader sets 1.0, which thins out solved tasks only.
    """
    if success_rate is None or success_rate < threshold or success_rate * (base + 7) <= 9:
        return base
    return min(base, max(minimum, math.floor(9 / success_rate - 7 + _HAIR)))


def cap_dart_turns(longest_success: int, *, limit: int, slack: float) -> int:
    """Return a task's turn cap: its longest success times `slack`, the global one before any.

    `slack=1` is the paper's cap, which no later success can exceed.
    """
    if not longest_success:
        return limit
    length = slack * longest_success - _HAIR
    return limit if length >= limit else math.ceil(length)


def find_recent_rate(record: TaskStatistics, *, window: int) -> float | None:
    """Return the mean score of a task's latest `window` trajectories; None without any."""
    latest = record.recent[-window:]
    return math.fsum(latest) / len(latest) if latest else None


def advantage_mass(success_rate: float, *, normalise_std: bool) -> float:
    """Return the cumulated advantage of one trajectory in a group of this success rate."""
    product = success_rate * (1 - success_rate)
    return 2 * math.sqrt(product) if normalise_std else 2 * product


def count_dars_extra(
    success_rate: float,
    *,
    size: int,
    base: int,
    limit: int,
    form: DarsForm,
    normalise_std: bool = False,
) -> int:
    """Return the number of trajectories that a second phase adds to a group.

    `size` of them count so far, `base` is what the first phase asks for, and base + extra is at
    most `limit`. `equal` lifts every hard task to the mass of one that succeeds half of the time,
    `hardness` beyond it in proportion to the failures.
    """
    if success_rate >= 0.5 or not size:
        return 0
    rate = success_rate or 0.5 / size
    each = advantage_mass(rate, normalise_std=normalise_std)
    goal = base * advantage_mass(0.5, normalise_std=normalise_std)
    if form == "hardness":
        goal *= 2 * (1 - rate)
    lacking, room = goal - size * each, limit - base
    if lacking >= room * each:
        return max(0, room)
    return max(0, min(math.ceil(lacking / each - _HAIR), room))
