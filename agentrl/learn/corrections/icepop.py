"""IcePop: importance weights within bounds, and nothing outside of them."""

from functools import partial

import torch

from agentrl.config.learning.correction import Level, MaskedCorrection
from agentrl.errors import ConfigError
from agentrl.learn.correction import AnyCorrectionFunction, CorrectionWeights, PolicyMismatch
from agentrl.learn.corrections.level import ratios
from agentrl.learn.corrections.normalised import normalised
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


def _bind(section: MaskedCorrection) -> AnyCorrectionFunction:
    if section.low > section.high:
        raise ConfigError(
            f"learn.correction.low is {section.low} and learn.correction.high is {section.high}, "
            "so no weight lies between them; lower the first"
        )
    weigh = partial(icepop, level=section.level, low=section.low, high=section.high)
    return normalised(weigh, level=section.level) if section.normalise else weigh


METHOD = LearnMethod(
    MaskedCorrection,
    _bind,
    "IcePop (Ling team 2025); bounds and normalisation: verl; levels: slime",
    always("behaviour logprobs"),
)
