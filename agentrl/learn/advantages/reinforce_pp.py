"""REINFORCE++: returns per token, or rewards minus the group's mean; whitened over the batch."""

from collections.abc import Sequence
from functools import partial
from typing import Literal

from agentrl.config.learning.advantage import ReinforcePpAdvantage, ReinforcePpBaselineAdvantage
from agentrl.learn.advantage import TokenAdvantages, per_trajectory
from agentrl.learn.advantages.grpo import grpo
from agentrl.learn.method import LearnMethod, bind_knobs
from agentrl.learn.sample import TrainingGroup
from agentrl.learn.turns import Paid, discount, place_on_mask, token_rewards
from agentrl.learn.whitening import whiten_credit


def reinforce_pp(
    groups: Sequence[TrainingGroup], *, gamma: float = 1.0, paid: Paid = "end"
) -> TokenAdvantages:
    """Return G_t = r_t + gamma G_(t+1), whitened over every token of the batch that trains.

    Tokens that do not train are no steps: what comes after them passes through undiminished.
    Source: Hu et al. 2025 (arXiv 2501.03262), without its KL in the reward.
    """
    samples = [sample for group in groups for sample in group.samples]
    returns = [
        place_on_mask(s, discount(token_rewards(s, paid=paid)[s.mask], gamma)) for s in samples
    ]
    return whiten_credit(samples, returns)


def reinforce_pp_baseline(
    groups: Sequence[TrainingGroup], *, singleton: Literal["zero", "raw"] = "zero"
) -> TokenAdvantages:
    """Return reward minus the group's mean, whitened over every token of the batch that trains.

    Source: Hu et al. 2025 (arXiv 2501.03262), REINFORCE++-baseline.
    """
    centred = per_trajectory(partial(grpo, normalise_std=False, singleton=singleton))(groups)
    return whiten_credit([sample for group in groups for sample in group.samples], centred)


PLAIN = LearnMethod(
    ReinforcePpAdvantage, bind_knobs(reinforce_pp), "Hu et al. 2025, arXiv 2501.03262"
)
BASELINE = LearnMethod(
    ReinforcePpBaselineAdvantage,
    bind_knobs(reinforce_pp_baseline),
    "Hu et al. 2025, arXiv 2501.03262",
)
