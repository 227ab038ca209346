"""XRPO's allocation: more trajectories where one more narrows the interval of the mean most.

Source: arXiv 2510.06672, as reported by others. The form of the exploration bonus, and that the
trajectories drawn so far are those of the step before the round, are our own reading.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace

from agentrl.rollout.curation.outcomes import GroupOutcome
from agentrl.rollout.curation.rounds import RoundAllocator
from agentrl.runtime.student import two_sided_t


@dataclass(frozen=True, slots=True, kw_only=True)
class XrpoAllocator(RoundAllocator):
    """XRPO: round by round to tasks whose mean reward is least certain, and to those seen least."""

    exploration: float = 0.1
    """Weight of the bonus for tasks with few trajectories."""

    def share(self, groups: Sequence[GroupOutcome], count: int) -> list[int]:
        return share_by_uncertainty(
            [group.rewards for group in groups], count=count, exploration=self.exploration
        )


def share_by_uncertainty(
    rewards: Sequence[Sequence[float]], *, count: int, exploration: float
) -> list[int]:
    """Return the number of the `count` trajectories that each task gets, given its rewards so far.

    Each goes to the task of the highest `narrowing` plus `exploration_bonus`, as if those before it
    had left the standard deviation as it is; of equals to the first. A task without rewards gets
    none, and without any task that has some nothing is shared.
    """
    more = [0] * len(rewards)
    drawn = sum(map(len, rewards))
    deviations = [statistics.stdev(values) if len(values) > 1 else 0.0 for values in rewards]

    def priority(task: int) -> float:
        n = len(rewards[task]) + more[task]
        return narrowing(deviations[task], n) + exploration * exploration_bonus(drawn, n)

    queue = [(-priority(task), task) for task, values in enumerate(rewards) if values]
    heapify(queue)
    for _ in range(count if queue else 0):
        task = queue[0][1]
        more[task] += 1
        heapreplace(queue, (-priority(task), task))
    return more


def half_width(deviation: float, n: int) -> float:
    """Return half of the 95 % interval of a mean of `n` values with this standard deviation."""
    return two_sided_t(0.95, n - 1) * deviation / math.sqrt(n)


def narrowing(deviation: float, n: int) -> float:
    """Return the width that one more than `n` values takes off the interval; 0 for one value."""
    if n < 2 or not deviation:
        return 0.0
    return half_width(deviation, n) - half_width(deviation, n + 1)


def exploration_bonus(drawn: int, n: int) -> float:
    """Return the bonus of a task with `n` of the `drawn` trajectories."""
    return math.sqrt(math.log(1 + drawn) / n)
