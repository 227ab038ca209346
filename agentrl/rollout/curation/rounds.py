"""Allocation in rounds: a first round for every task of a step, then more where a rule says.

A step's groups share `group_size` trajectories per group. How large each group becomes follows from
the results of all of them alone, round after round. So it can be worked out again at any time, and
a run that was killed between two groups of a round ends with the sizes that it would have had.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

from agentrl.rollout.curation.allocation import TaskAllotment
from agentrl.rollout.curation.outcomes import GroupOutcome
from agentrl.rollout.curation.record import TaskStatistics


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundAllocator(ABC):
    """Base of allocations in rounds, which have to say how a round is shared."""

    first_round: int = 4
    """Trajectories of each task in the first round."""
    rounds: int = 3
    """Rounds of a step, the first one among them."""

    @property
    def window(self) -> int:
        return 0

    @property
    def by_step(self) -> bool:
        return True

    def first(self, record: TaskStatistics, *, base: int, max_turns: int) -> TaskAllotment:
        return TaskAllotment(trajectories=self.first_round, max_turns=max_turns)

    def more(self, groups: Sequence[GroupOutcome], *, base: int) -> list[int]:
        sizes = self.plan_sizes(groups, base=base)
        return [max(0, size - group.asked) for size, group in zip(sizes, groups, strict=True)]

    def plan_sizes(self, groups: Sequence[GroupOutcome], *, base: int) -> list[int]:
        """Return the sizes of a step's groups after the next round, or after the last one."""
        sizes = [self.first_round] * len(groups)
        remaining = (base - self.first_round) * len(groups)
        for rounds_left in range(self.rounds - 1, 0, -1):
            if any(group.asked < size for group, size in zip(groups, sizes, strict=True)):
                break
            groups_so_far = [_cut(group, size) for group, size in zip(groups, sizes, strict=True)]
            more = self.share(groups_so_far, -(-remaining // rounds_left))
            remaining -= sum(more)
            sizes = [size + extra for size, extra in zip(sizes, more, strict=True)]
        return sizes

    @abstractmethod
    def share(self, groups: Sequence[GroupOutcome], count: int) -> list[int]:
        """Return the number of the `count` trajectories that each group gets.

        The groups come as they stood when a round had ended, in the order they were drawn.
        """


def _cut(group: GroupOutcome, size: int) -> GroupOutcome:
    """Return a group as it stood with its first `size` trajectories."""
    results = tuple(result for result in group.results if result.sample < size)
    return replace(group, asked=size, results=results)
