"""Generalised advantage estimation, per token or per turn, and what its critic learns from it."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from agentrl.config.learning.advantage import GaeAdvantage
from agentrl.config.section import ConfigSection
from agentrl.errors import LearnError
from agentrl.learn.advantage import TokenAdvantages
from agentrl.learn.method import LearnMethod, always, bind_knobs, knobs_of
from agentrl.learn.sample import TrainingGroup, TrainingSample
from agentrl.learn.turns import Paid, discount, place_on_mask, token_rewards
from agentrl.learn.whitening import whiten_credit

Level = Literal["token", "turn"]

ReturnsFunction = Callable[[Sequence[TrainingGroup]], list[Float[ndarray, " tokens"]]]
"""Function from groups with critic values to the critic's targets, per token of the mask."""


def gae(
    rewards: Float[ndarray, " steps"],
    values: Float[ndarray, " steps"],
    *,
    gamma: float = 1.0,
    lam: float = 1.0,
    final_value: float = 0.0,
) -> Float[ndarray, " steps"]:
    """Return A_t = d_t + gamma lam A_(t+1) with d_t = r_t + gamma V_(t+1) - V_t.

    `final_value` stands for V after the last step: 0 where the task itself ended.
    Source: Schulman et al. 2016 (arXiv 1506.02438), equations 11-16.
    """
    following = np.append(values, final_value)[1:]
    return discount(rewards + gamma * following - values, gamma * lam)


def gae_advantages(
    groups: Sequence[TrainingGroup],
    *,
    level: Level = "token",
    gamma: float = 1.0,
    lam: float = 1.0,
    paid: Paid = "turns",
    whiten: bool = True,
) -> TokenAdvantages:
    """Return the estimate of its token, or of its turn, at every token of the mask.

    Tokens that do not train are no steps, so values and rewards pass them undiminished. A turn's
    value is the one before its first token. Where a limit of ours ended a trajectory the critic's
    `final_value` stands for what would have come.
    """
    samples = [sample for group in groups for sample in group.samples]
    estimate = partial(gae, gamma=gamma, lam=lam)
    advantages = [_over_steps(sample, level, paid, estimate) for sample in samples]
    return whiten_credit(samples, advantages) if whiten else advantages


def gae_returns(
    groups: Sequence[TrainingGroup],
    *,
    level: Level = "token",
    gamma: float = 1.0,
    lam: float = 1.0,
    paid: Paid = "turns",
) -> list[Float[ndarray, " tokens"]]:
    """Return A + V of each step, not whitened, at every token of the mask: the critic's targets."""

    def returns(
        rewards: ndarray, values: ndarray, *, final_value: float
    ) -> Float[ndarray, " steps"]:
        return values + gae(rewards, values, gamma=gamma, lam=lam, final_value=final_value)

    samples = [sample for group in groups for sample in group.samples]
    return [_over_steps(sample, level, paid, returns) for sample in samples]


def returns_of(section: ConfigSection) -> ReturnsFunction:
    """Return the target function of a critic: GAE's own returns, else undiscounted ones."""
    if not isinstance(section, GaeAdvantage):
        return gae_returns
    knobs = knobs_of(section)
    del knobs["whiten"]
    return partial(gae_returns, **knobs)


def _over_steps(
    sample: TrainingSample, level: Level, paid: Paid, estimate: Callable[..., ndarray]
) -> Float[ndarray, " tokens"]:
    mask = sample.mask
    if not mask.any():
        return np.zeros(len(mask))
    if sample.values is None:
        raise LearnError(
            f"task {sample.task_id!r} sample {sample.sample} has no values, which GAE requires; "
            "set learn.critic"
        )
    rewards, values = token_rewards(sample, paid=paid)[mask], sample.values[mask]
    final_value = sample.final_value if sample.truncated else 0.0
    if level == "token":
        return place_on_mask(sample, estimate(rewards, values, final_value=final_value))
    _, first, turn = np.unique(sample.turns[mask], return_index=True, return_inverse=True)
    per_turn = estimate(np.bincount(turn, weights=rewards), values[first], final_value=final_value)
    return place_on_mask(sample, per_turn[turn])


METHOD = LearnMethod(
    GaeAdvantage,
    bind_knobs(gae_advantages),
    "Schulman et al. 2016, arXiv 1506.02438",
    always("values"),
)
