"""Step 8 of the flow: the loss of a token, given its ratio and its advantage. Minimised."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are cut to +-this before `exp`; e^20 is finite in every type we compute in."""


@dataclass(frozen=True, slots=True, eq=False)
class PolicyTokens:
    """What a loss may look at. Everything is 0 off the mask; only `logprobs` carries gradient."""

    logprobs: Float[Tensor, "rows width"]
    """Of the current policy."""
    proximal: Float[Tensor, "rows width"]
    """Of the policy the clip is anchored to."""
    advantages: Float[Tensor, "rows width"]
    mask: Bool[Tensor, "rows width"]


@dataclass(frozen=True, slots=True, eq=False)
class TokenLoss:
    """A loss per token, and where clipping took the gradient away."""

    losses: Float[Tensor, "*shape"]
    clipped: Bool[Tensor, "*shape"]


LossFunction = Callable[[PolicyTokens], TokenLoss]
"""The loss slot. The loss of a token is zero, with zero gradient, where its advantage is zero: the
trainer relies on it and runs no backward pass for trajectories without credit."""


def ratio(log_ratio: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return exp of the log-ratio cut to +-20; beyond that it is constant and has no gradient."""
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


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
    plain = -advantages * current
    bounded = -advantages * current.clamp(1 - clip_low, 1 + clip_high)
    losses = torch.maximum(plain, bounded)
    clipped = bounded > plain
    if dual_clip is not None:
        ceiling = -advantages * dual_clip
        over = (advantages < 0) & (ceiling < losses)
        losses = torch.where(over, ceiling, losses)
        clipped = clipped | over
    return TokenLoss(losses, clipped)
