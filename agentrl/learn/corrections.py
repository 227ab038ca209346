"""Off-policy corrections, per token or per sequence; `learn/correction.py` is their contract."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from agentrl.config.learning.correction import (
    FlooredCorrection,
    Level,
    MaskedCorrection,
    NoCorrection,
    TruncatedCorrection,
    check_bounds,
)
from agentrl.learn.correction import (
    AnyCorrectionFunction,
    CorrectionFunction,
    CorrectionWeights,
    PlannedCorrection,
    PolicyMismatch,
    token_ratio,
)
from agentrl.learn.loss import LOG_RATIO_LIMIT
from agentrl.learn.method import LearnMethod, always, bind_knobs, knobs_of

LEAST_MEAN = 1e-8
"""A mean weight up to this is left alone: dividing by it would blow up what is left."""


def ratios(tokens: PolicyMismatch, level: Level) -> Float[Tensor, "rows width"]:
    """Return proximal / behaviour at a level, on every token of the mask; 0 off it.

    `geometric` is exp of the mean log-ratio (AReaL's weight of a sequence, arXiv 2505.24298).
    Log-ratios are summed first and the result is cut to +-20, so that two large ones of opposite
    sign still cancel.
    """
    if level == "token":
        return token_ratio(tokens)
    total = torch.where(tokens.mask, tokens.gaps, 0.0).sum(dim=-1, keepdim=True)
    if level == "geometric":
        total = total / tokens.mask.sum(dim=-1, keepdim=True).clamp(min=1)
    whole = total.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    return torch.where(tokens.mask, whole, 0.0)


def bind_bounded(
    weigh: Callable[..., CorrectionWeights],
) -> Callable[[MaskedCorrection | TruncatedCorrection], AnyCorrectionFunction]:
    """Return the binding of a correction that has bounds; it raises what `check_bounds` raises."""

    def bind(section: MaskedCorrection | TruncatedCorrection) -> AnyCorrectionFunction:
        check_bounds(section)
        knobs = knobs_of(section)
        normalises = knobs.pop("normalise")
        bounded = partial(weigh, **knobs)
        return normalise_weights(bounded, level=section.level) if normalises else bounded

    return bind


def normalise_weights(weigh: CorrectionFunction, *, level: Level) -> PlannedCorrection:
    """Return `weigh` with its weights, truncated already, divided by their mean.

    The mean is over all sampled tokens of the optimiser step, or over its sequences that have any.
    Source: verl, batch normalisation of rollout importance weights.
    """

    def plan(step: PolicyMismatch) -> CorrectionFunction:
        mean = mean_weight(weigh(step).applied, step.mask, level)

        def weights(tokens: PolicyMismatch) -> CorrectionWeights:
            correction = weigh(tokens)
            return replace(correction, applied=correction.applied / mean)

        return weights

    return PlannedCorrection(plan)


def mean_weight(
    applied: Float[Tensor, "rows width"], mask: Bool[Tensor, "rows width"], level: Level
) -> float:
    """Return the divisor of the weights, their mean; 1 where it is too small or there are none."""
    counts = mask.sum(dim=-1)
    if not counts.any():
        return 1.0
    if level == "token":
        mean = applied[mask].double().mean().item()
    else:
        live = counts > 0
        per_row = applied.where(mask, 0.0).double().sum(dim=-1)[live] / counts[live]
        mean = per_row.mean().item()
    return mean if mean > LEAST_MEAN else 1.0


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


def icepop(
    tokens: PolicyMismatch, *, level: Level = "token", low: float = 0.5, high: float = 5.0
) -> CorrectionWeights:
    """Return proximal / behaviour of a level where it lies in [`low`, `high`], else 0.

    What weighs 0 stays in every denominator. Source: IcePop (Ling team 2025), with verl's bounds.
    """
    raw = ratios(tokens, level)
    inside = tokens.mask & (raw >= low) & (raw <= high)
    return CorrectionWeights(applied=torch.where(inside, raw, 0.0), raw=raw, cap=high)


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


METHODS: tuple[LearnMethod[AnyCorrectionFunction], ...] = (
    LearnMethod(NoCorrection, bind_knobs(measure_ratios), ""),
    LearnMethod(
        TruncatedCorrection,
        bind_bounded(truncate_ratios),
        "Yao et al. 2025 (Flash-RL); sequence level and normalisation: verl; geometric level: Fu "
        "et al. 2025 (AReaL), arXiv 2505.24298; floor: slime",
        always("behaviour logprobs"),
    ),
    LearnMethod(
        MaskedCorrection,
        bind_bounded(icepop),
        "IcePop (Ling team 2025); bounds and normalisation: verl; levels: slime",
        always("behaviour logprobs"),
    ),
    LearnMethod(
        FlooredCorrection,
        bind_knobs(bound_weights),
        "Hilton et al. 2021, arXiv 2110.00641",
        always("behaviour logprobs"),
    ),
)
