"""DUET's allocation: trajectories in proportion to the spread of the gradient, over the root of
their cost.

Source: arXiv 2605.08441 and its code. There spread and length come from earlier visits of a task
and from a regression; here a first round measures both. Its stop rule, length caps and weights are
not here.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from agentrl.rollout.curation.outcomes import GroupOutcome, mean
from agentrl.rollout.curation.rounds import RoundAllocator

LOG_PRICE = 20.0
"""The multiplier of the cost is searched between e^-20 and e^20, as published."""
HALVINGS = 60
"""Published are 10, which miss the budget by a few trajectories."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DuetAllocator(RoundAllocator):
    """DUET: after a first round, the tokens that are left go where gradients differ most."""

    rounds: int = 2
    max_trajectories: int = 32
    """Most trajectories of one task."""

    def share(self, groups: Sequence[GroupOutcome], count: int) -> list[int]:
        """Return the trajectories of each group, for the tokens of `count` mean ones."""
        counts = [len(group.valid) for group in groups]
        tokens = [mean(result.tokens for result in group.valid) for group in groups]
        lengths = [length for length in tokens if length is not None]
        if not lengths:
            return [0] * len(groups)
        costs = [max(1.0, length or 0.0) for length in tokens]
        sizes = allocate_by_spread(
            [measure_spread(group) for group in groups],
            costs,
            least=counts,
            most=self.max_trajectories,
            budget=_compute_cost(counts, costs) + count * statistics.fmean(lengths),
        )
        return [size - n for size, n in zip(sizes, counts, strict=True)]


def measure_spread(group: GroupOutcome) -> float:
    """Return the standard deviation of advantage times log-prob over a group's trajectories."""
    if len(group.valid) < 2:
        return 0.0
    centre, deviation = statistics.fmean(group.rewards), statistics.stdev(group.rewards)
    return statistics.pstdev(
        (reward - centre) / (deviation + 1e-6) * result.logprob
        for reward, result in zip(group.rewards, group.valid, strict=True)
    )


def allocate_by_spread(
    spreads: Sequence[float],
    costs: Sequence[float],
    *,
    least: Sequence[int],
    most: int,
    budget: float,
) -> list[int]:
    """Return the number of trajectories per task: spread / sqrt(price * cost), within bounds.

    The price is the lowest at which all of them cost no more than `budget`; where even the least
    numbers cost more, it is those.
    """
    low, high, sizes = -LOG_PRICE, LOG_PRICE, list(least)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        tried = [
            max(fewest, min(most, round(spread / math.sqrt(math.exp(middle) * cost))))
            for spread, cost, fewest in zip(spreads, costs, least, strict=True)
        ]
        if _compute_cost(tried, costs) > budget:
            low = middle
        else:
            sizes, high = tried, middle
    return sizes


def _compute_cost(sizes: Sequence[int], costs: Sequence[float]) -> float:
    return math.fsum(size * cost for size, cost in zip(sizes, costs, strict=True))
