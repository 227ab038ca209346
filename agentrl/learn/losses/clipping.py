"""Common part of the clipped losses: the worse of the ratio as it is and as it is bounded."""

import torch
from jaxtyping import Float
from torch import Tensor

from agentrl.learn.loss import TokenLoss


def pessimistic(
    ratio: Float[Tensor, "*shape"],
    bounded: Float[Tensor, "*shape"],
    advantages: Float[Tensor, "*shape"],
    *,
    dual_clip: float | None = None,
) -> TokenLoss:
    """Return max(-A ratio, -A bounded), for negative advantages at most -A x `dual_clip`."""
    plain, other = -advantages * ratio, -advantages * bounded
    losses = torch.maximum(plain, other)
    clipped = other > plain
    if dual_clip is not None:
        ceiling = -advantages * dual_clip
        over = (advantages < 0) & (ceiling < losses)
        losses = torch.where(over, ceiling, losses)
        clipped = clipped | over
    return TokenLoss(losses, clipped)
