"""GRPO: reward minus the group's mean, over its standard deviation. Dr.GRPO and RLOO: without."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import numpy as np

from agentrl.config.learning.advantage import GroupScore, GrpoAdvantage, RlooAdvantage
from agentrl.learn.advantage import bind_per_trajectory
from agentrl.learn.method import LearnMethod


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


def score_of(section: GroupScore) -> Callable[[Sequence[float]], tuple[float, ...]]:
    """Return `grpo` with the knobs of a section."""
    return partial(grpo, **{key: getattr(section, key) for key in GroupScore.model_fields})


def rloo(
    rewards: Sequence[float], *, singleton: Literal["zero", "raw"] = "zero"
) -> tuple[float, ...]:
    """Return R_i minus the mean of all R_j with j != i, which is n / (n - 1) (R_i - mean).

    The baseline does not depend on what it is a baseline of, so the estimate is unbiased. Equal
    rewards give exactly zero. Source: Ahmadian et al. 2024 (arXiv 2402.14740), section 3.
    """
    centred = grpo(rewards, normalise_std=False, singleton=singleton)
    n = len(rewards)
    return centred if n < 2 else tuple(n / (n - 1) * x for x in centred)


METHOD = LearnMethod(
    GrpoAdvantage,
    bind_per_trajectory(grpo),
    "Shao et al. 2024, arXiv 2402.03300; Liu et al. 2025, arXiv 2503.20783",
)
RLOO = LearnMethod(
    RlooAdvantage, bind_per_trajectory(rloo), "Ahmadian et al. 2024, arXiv 2402.14740"
)
