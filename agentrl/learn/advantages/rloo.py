"""RLOO: reward minus the mean reward of the others in the group."""

from collections.abc import Sequence
from typing import Literal

from agentrl.config.learning.advantage import RlooAdvantage
from agentrl.learn.advantage import bind_per_trajectory
from agentrl.learn.advantages.grpo import grpo
from agentrl.learn.method import LearnMethod


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
    RlooAdvantage, bind_per_trajectory(rloo), "Ahmadian et al. 2024, arXiv 2402.14740"
)
