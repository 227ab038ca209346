"""AEPO's entropy-balanced clipping: above the clip the gradient stays alive."""

import torch
from jaxtyping import Float
from torch import Tensor

from agentrl.config.learning.loss import AepoLoss
from agentrl.learn.loss import TokenLoss, bind_ratio_loss, ratio
from agentrl.learn.losses.ppo_clip import pessimistic
from agentrl.learn.method import LearnMethod


def aepo(
    log_ratio: Float[Tensor, "*shape"],
    advantages: Float[Tensor, "*shape"],
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = 3.0,
) -> TokenLoss:
    """Return PPO's clipped loss, whose upper bound has the slope of the ratio it bounds.

    The value is PPO's. The gradient on log-probs is -A (1 + `clip_high`), in place of 0, where the
    ratio is above 1 + `clip_high` and A is positive; elsewhere it is PPO's. Every such token is
    meant, whatever its entropy, as in the authors' code.
    Source: Dong et al. 2025 (AEPO), arXiv 2510.14545, entropy-balanced policy optimisation.
    """
    current = ratio(log_ratio)
    slope = (log_ratio - log_ratio.detach()).exp()
    upper = (1 + clip_high) * slope
    bounded = torch.where(current > 1 + clip_high, upper, current.clamp(min=1 - clip_low))
    return pessimistic(current, bounded, advantages, dual_clip=dual_clip)


METHOD = LearnMethod(AepoLoss, bind_ratio_loss(aepo), "Dong et al. 2025, arXiv 2510.14545")
