"""GSPO: one ratio for a whole sequence, or for each of its turns."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from agentrl.config.learning.loss import GspoLoss
from agentrl.learn.loss import LOG_RATIO_LIMIT, LossFunction, PolicyTokens, TokenLoss
from agentrl.learn.losses.ppo_clip import pessimistic
from agentrl.learn.method import LearnMethod

LOG_RATIO_CEILING = 10.0
"""A mean log-ratio above it is cut to it, and has no gradient."""


def segment_means(
    values: Float[Tensor, "rows width"],
    mask: Bool[Tensor, "rows width"],
    segments: Int[Tensor, "rows width"],
) -> Float[Tensor, "rows width"]:
    """Return at each place the mean over the masked places of its row that are in its segment.

    Segments are counted from 0 in every row. What stands off the mask may be anything; where a
    segment has nothing on the mask, the mean is 0.
    """
    shape = (len(values), int(segments.max()) + 1 if segments.numel() else 1)
    sums = values.new_zeros(shape).scatter_add(1, segments, torch.where(mask, values, 0.0))
    counts = values.new_zeros(shape).scatter_add(1, segments, mask.to(values.dtype))
    return (sums / counts.clamp(min=1)).gather(1, segments)


def gspo(
    log_ratio: Float[Tensor, "rows width"],
    advantages: Float[Tensor, "rows width"],
    mask: Bool[Tensor, "rows width"],
    segments: Int[Tensor, "rows width"],
    *,
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
) -> TokenLoss:
    """Return the clipped loss of s = exp(mean of the segment's log-ratios), per token.

    The value of a token is that of its segment, and its gradient goes through its own log-prob
    alone: -A s where s is not clipped. So a sequence's mean has the gradient of the sequence's own
    clipped loss where its advantages agree, and where they differ no token pays for another's.
    Source: Zheng et al. 2025 (GSPO), arXiv 2507.18071, equation 15 (GSPO-token); a ratio per turn:
    ROLL's segment ratio.
    """
    means = segment_means(log_ratio.detach(), mask, segments)
    log_importance = means + log_ratio - log_ratio.detach()
    current = log_importance.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_CEILING).exp()
    return pessimistic(current, current.clamp(1 - clip_low, 1 + clip_high), advantages)


def _bind(section: GspoLoss) -> LossFunction:
    per_turn = section.level == "turn"
    clips = {"clip_low": section.clip_low, "clip_high": section.clip_high}

    def loss(tokens: PolicyTokens) -> TokenLoss:
        segments = tokens.turns if per_turn else torch.zeros_like(tokens.turns)
        return gspo(tokens.log_ratio, tokens.advantages, tokens.mask, segments, **clips)

    return loss


METHOD = LearnMethod(GspoLoss, _bind, "Zheng et al. 2025, arXiv 2507.18071")
