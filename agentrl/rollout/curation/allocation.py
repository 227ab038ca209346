"""Allocation of trajectories to tasks, and of turns to each trajectory."""

from dataclasses import dataclass
from typing import Protocol

from agentrl.rollout.curation import dars, dart
from agentrl.rollout.curation.outcomes import GroupOutcome, mean, success_rate
from agentrl.rollout.curation.record import TaskStatistics


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

    def first(self, record: TaskStatistics, *, base: int, max_turns: int) -> TaskAllotment:
        """Return a task's first allotment; `base` and `max_turns` are the run's."""
        ...

    def more(self, group: GroupOutcome, *, base: int) -> int:
        """Return the number of trajectories added to a group once it has ended; asked once."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedAllocator:
    """The same for every task."""

    @property
    def window(self) -> int:
        """Return 0: nothing of earlier groups is looked at."""
        return 0

    def first(self, record: TaskStatistics, *, base: int, max_turns: int) -> TaskAllotment:
        """Return the run's own numbers."""
        return TaskAllotment(trajectories=base, max_turns=max_turns)

    def more(self, group: GroupOutcome, *, base: int) -> int:
        """Return 0."""
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DartAllocator:
    """DART: fewer trajectories for nearly solved tasks, and at most a bit longer than a success."""

    threshold: float = 0.6
    """Success rate from which a task gets fewer; the released code sets 1.0."""
    minimum: int = 1
    """Fewest trajectories; with rewards up to 1 the formula itself never goes below 2."""
    window: int = 8
    """Latest trajectories that the success rate is taken over."""
    length_slack: float | None = 1.5
    """Turn cap over the longest success; 1.0 is the paper's, null leaves the run's cap (code)."""

    def first(self, record: TaskStatistics, *, base: int, max_turns: int) -> TaskAllotment:
        """Return fewer trajectories and turns the better a task goes."""
        rate = dart.success_rate(record, window=self.window)
        longest, slack = record.longest_success_turns, self.length_slack
        return TaskAllotment(
            trajectories=dart.rollouts(
                rate, base=base, threshold=self.threshold, minimum=self.minimum
            ),
            max_turns=max_turns
            if slack is None
            else dart.turns(longest, limit=max_turns, slack=slack),
        )

    def more(self, group: GroupOutcome, *, base: int) -> int:
        """Return 0."""
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DarsAllocator:
    """DARS: a second phase for tasks that succeed less than half of the time."""

    form: dars.Form = "equal"
    """Lift hard tasks to equal mass, or in proportion to their hardness."""
    max_trajectories: int | None = None
    """Limit over both phases; 4 (equal) or 8 (hardness) times the group size by default."""
    normalise_std: bool = False
    """True when the advantage divides by the standard deviation; decides a group's mass."""
    budget_s: float | None = None
    """Most seconds of trajectories that a second phase may add, by the first phase's mean."""

    @property
    def window(self) -> int:
        """Return 0: nothing of earlier groups is looked at."""
        return 0

    def limit(self, base: int) -> int:
        """Return the most trajectories one group may have."""
        factor = 4 if self.form == "equal" else 8
        return self.max_trajectories or factor * base

    def first(self, record: TaskStatistics, *, base: int, max_turns: int) -> TaskAllotment:
        """Return the run's own numbers: the first phase measures."""
        return TaskAllotment(trajectories=base, max_turns=max_turns)

    def more(self, group: GroupOutcome, *, base: int) -> int:
        """Return the second phase; 0 for a group of failures only, which measured nothing."""
        rate = success_rate(group)
        if rate is None:
            return 0
        more = dars.extra(
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
        return min(more, int(self.budget_s / seconds))
