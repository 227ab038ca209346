"""Truncated importance sampling, per token or per sequence; and no correction at all."""

import torch

from agentrl.config.learning.correction import Level, NoCorrection, TruncatedCorrection
from agentrl.learn.correction import CorrectionWeights, PolicyMismatch, token_ratio
from agentrl.learn.corrections.level import bind_bounded, ratios
from agentrl.learn.method import LearnMethod, always, bind_knobs


def measure_ratios(tokens: PolicyMismatch) -> CorrectionWeights:
    """Return weight 1 everywhere; the ratio of the tokens is still measured."""
    return CorrectionWeights(applied=tokens.mask.float(), raw=token_ratio(tokens))


def truncate_ratios(
    tokens: PolicyMismatch, *, level: Level = "token", cap: float = 2.0, floor: float = 0.0
) -> CorrectionWeights:
    """Return proximal / behaviour of a level, held between `floor` and `cap`.

    Source: Yao et al. 2025 (truncated importance sampling, Flash-RL); with a floor: slime.
    """
    raw = ratios(tokens, level)
    return CorrectionWeights(
        applied=torch.where(tokens.mask, raw.clamp(floor, cap), 0.0), raw=raw, cap=cap
    )


NONE = LearnMethod(NoCorrection, bind_knobs(measure_ratios), "")
TRUNCATED = LearnMethod(
    TruncatedCorrection,
    bind_bounded(truncate_ratios, "floor", "cap"),
    "Yao et al. 2025 (Flash-RL); sequence level and normalisation: verl; geometric level: Fu et "
    "al. 2025 (AReaL), arXiv 2505.24298; floor: slime",
    always("behaviour logprobs"),
)
