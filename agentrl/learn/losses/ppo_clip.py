"""PPO's clipped loss, with clip-higher and dual clip."""

import torch
from jaxtyping import Float
from torch import Tensor

from agentrl.config.learning.loss import PpoClipLoss
from agentrl.learn.loss import TokenLoss, bind_ratio_loss, ratio
from agentrl.learn.method import LearnMethod


def pessimistic(
    current: Float[Tensor, "*shape"],
    bounded: Float[Tensor, "*shape"],
    advantages: Float[Tensor, "*shape"],
    *,
    dual_clip: float | None = None,
) -> TokenLoss:
    """Return max(-A ratio, -A bounded), for negative advantages at most -A x `dual_clip`."""
    plain, other = -advantages * current, -advantages * bounded
    losses = torch.maximum(plain, other)
    clipped = other > plain
    if dual_clip is not None:
        ceiling = -advantages * dual_clip
        over = (advantages < 0) & (ceiling < losses)
        losses = torch.where(over, ceiling, losses)
        clipped = clipped | over
    return TokenLoss(losses, clipped)


def ppo_clip(
    log_ratio: Float[Tensor, "*shape"],
    advantages: Float[Tensor, "*shape"],
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = 3.0,
) -> TokenLoss:
    """Return PPO's clipped loss of current over proximal, per token.

    The ratio earns nothing above 1 + `clip_high` or below 1 - `clip_low`. For negative advantages
    `dual_clip` bounds the loss at -A x dual_clip, where the gradient ends.
    Source: Schulman et al. 2017 (arXiv 1707.06347); dual clip: Ye et al. 2020 (arXiv 1912.09729);
    a wider upper bound: Yu et al. 2025 (arXiv 2503.14476).
    """
    current = ratio(log_ratio)
    bounded = current.clamp(1 - clip_low, 1 + clip_high)
    return pessimistic(current, bounded, advantages, dual_clip=dual_clip)


METHOD = LearnMethod(
    PpoClipLoss,
    bind_ratio_loss(ppo_clip),
    "Schulman et al. 2017, arXiv 1707.06347; Ye et al. 2020, arXiv 1912.09729; Yu et al. 2025, "
    "arXiv 2503.14476",
)
