"""Step 7 of the flow: what each trajectory did better than its group. Pure functions of rewards."""

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from agentrl.learn.batch import Group

TokenAdvantages = list[Float[ndarray, " tokens"]]
"""One array per sample, in the order of the groups and of the samples within them."""

AdvantageFunction = Callable[[Sequence[Group]], TokenAdvantages]
"""The advantage slot: credit of every token of every sample of a batch. A whole batch goes in
because some methods normalise over it; values off the mask are never read."""


def grpo(
    rewards: Sequence[float],
    *,
    normalise_std: bool = True,
    epsilon: float = 1e-6,
    singleton: Literal["zero", "raw"] = "zero",
) -> tuple[float, ...]:
    """Return each reward minus the group's mean, over its unbiased standard deviation + epsilon.

    Failed trajectories are not in `rewards`. Equal rewards give exactly zero. A group of one has no
    baseline: `zero` drops it, `raw` keeps its reward. `normalise_std=False` is Dr.GRPO's form.
    Source: Shao et al. 2024 (arXiv 2402.03300) and Liu et al. 2025 (arXiv 2503.20783).
    """
    if len(rewards) == 1:
        return (float(rewards[0]) if singleton == "raw" else 0.0,)
    values = np.asarray(rewards, dtype=np.float64)
    # The rounded mean of equal numbers need not be that number, so subtracting it is not exact.
    if not len(values) or values.max() == values.min():
        return (0.0,) * len(values)
    centred = values - values.mean()
    scale = values.std(ddof=1) + epsilon if normalise_std else 1.0
    return tuple(float(x) for x in centred / scale)


def per_trajectory(credit: Callable[[Sequence[float]], Sequence[float]]) -> AdvantageFunction:
    """Return the slot function of a method that gives every token of a trajectory one value."""

    def advantages(groups: Sequence[Group]) -> TokenAdvantages:
        return [
            np.full(len(sample.token_ids), value)
            for group in groups
            for sample, value in zip(group.samples, credit(group.rewards), strict=True)
        ]

    return advantages
