"""The whole importance weight, bounded through the behaviour policy."""

import math

import torch

from agentrl.config.learning.correction import FlooredCorrection
from agentrl.learn.correction import CorrectionWeights, PolicyMismatch, token_ratio
from agentrl.learn.loss import LOG_RATIO_LIMIT
from agentrl.learn.method import LearnMethod, always, bind_knobs


def bound_weights(tokens: PolicyMismatch, *, limit: float = 100.0) -> CorrectionWeights:
    """Return proximal / max(behaviour, current / `limit`) of each token.

    So current / behaviour, which an unclipped token is multiplied by in the end, is at most
    `limit`. Source: Hilton et al. 2021 (PPO-EWMA, arXiv 2110.00641), as published with `limit` 100.
    """
    gaps = torch.minimum(tokens.gaps, math.log(limit) - tokens.drift)
    weights = gaps.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    return CorrectionWeights(
        applied=torch.where(tokens.mask, weights, 0.0), raw=token_ratio(tokens)
    )


METHOD = LearnMethod(
    FlooredCorrection,
    bind_knobs(bound_weights),
    "Hilton et al. 2021, arXiv 2110.00641",
    always("behaviour logprobs"),
)
