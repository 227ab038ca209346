"""Truncated importance sampling, per token or per sequence; and no correction at all."""

from functools import partial

import torch

from agentrl.config.learning.correction import Level, NoCorrection, TruncatedCorrection
from agentrl.errors import ConfigError
from agentrl.learn.correction import (
    AnyCorrectionFunction,
    CorrectionFunction,
    CorrectionWeights,
    PolicyMismatch,
    token_ratio,
)
from agentrl.learn.corrections.level import ratios
from agentrl.learn.corrections.normalised import normalised
from agentrl.learn.method import LearnMethod, always


def uncorrected(tokens: PolicyMismatch) -> CorrectionWeights:
    """Return weight 1 everywhere; the ratio of the tokens is still measured."""
    return CorrectionWeights(applied=tokens.mask.float(), raw=token_ratio(tokens))


def truncated(
    tokens: PolicyMismatch, *, level: Level = "token", cap: float = 2.0, floor: float = 0.0
) -> CorrectionWeights:
    """Return proximal / behaviour of a level, held between `floor` and `cap`.

    Source: Yao et al. 2025 (truncated importance sampling, Flash-RL); with a floor: slime.
    """
    raw = ratios(tokens, level)
    return CorrectionWeights(
        applied=torch.where(tokens.mask, raw.clamp(floor, cap), 0.0), raw=raw, cap=cap
    )


def _uncorrected(section: NoCorrection) -> CorrectionFunction:
    return uncorrected


def _truncated(section: TruncatedCorrection) -> AnyCorrectionFunction:
    if section.floor > section.cap:
        raise ConfigError(
            f"learn.correction.floor is {section.floor} and learn.correction.cap is {section.cap}, "
            "so no weight lies between them; lower the first"
        )
    weigh = partial(truncated, level=section.level, cap=section.cap, floor=section.floor)
    return normalised(weigh, level=section.level) if section.normalise else weigh


NONE = LearnMethod(NoCorrection, _uncorrected, "")
TRUNCATED = LearnMethod(
    TruncatedCorrection,
    _truncated,
    "Yao et al. 2025 (Flash-RL); sequence level and normalisation: verl; geometric level: Fu et "
    "al. 2025 (AReaL), arXiv 2505.24298; floor: slime",
    always("behaviour logprobs"),
)
