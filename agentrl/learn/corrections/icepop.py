"""IcePop: importance weights within bounds, and nothing outside of them."""

import torch

from agentrl.config.learning.correction import Level, MaskedCorrection
from agentrl.learn.correction import CorrectionWeights, PolicyMismatch
from agentrl.learn.corrections.level import bind_bounded, ratios
from agentrl.learn.method import LearnMethod, always


def icepop(
    tokens: PolicyMismatch, *, level: Level = "token", low: float = 0.5, high: float = 5.0
) -> CorrectionWeights:
    """Return proximal / behaviour of a level where it lies in [`low`, `high`], else 0.

    What weighs 0 stays in every denominator. Source: IcePop (Ling team 2025), with verl's bounds.
    """
    raw = ratios(tokens, level)
    inside = tokens.mask & (raw >= low) & (raw <= high)
    return CorrectionWeights(applied=torch.where(inside, raw, 0.0), raw=raw, cap=high)


METHOD = LearnMethod(
    MaskedCorrection,
    bind_bounded(icepop, "low", "high"),
    "IcePop (Ling team 2025); bounds and normalisation: verl; levels: slime",
    always("behaviour logprobs"),
)
