"""Levels of a correction: a ratio, and the mean weight of a step, per token or per sequence."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from agentrl.config.learning.correction import Level, MaskedCorrection, TruncatedCorrection
from agentrl.errors import ConfigError
from agentrl.learn.correction import (
    AnyCorrectionFunction,
    CorrectionFunction,
    CorrectionWeights,
    PlannedCorrection,
    PolicyMismatch,
    token_ratio,
)
from agentrl.learn.loss import LOG_RATIO_LIMIT
from agentrl.learn.method import knobs_of

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
    weigh: Callable[..., CorrectionWeights], low: str, high: str
) -> Callable[[MaskedCorrection | TruncatedCorrection], AnyCorrectionFunction]:
    """Return the binding of a correction whose bounds are the knobs of these names.

    It raises `ConfigError` for bounds that leave nothing between them.
    """

    def bind(section: MaskedCorrection | TruncatedCorrection) -> AnyCorrectionFunction:
        knobs = knobs_of(section)
        normalises = knobs.pop("normalise")
        if knobs[low] > knobs[high]:
            raise ConfigError(
                f"learn.correction.{low} is {knobs[low]} and learn.correction.{high} is "
                f"{knobs[high]}, so no weight lies between them; lower the first"
            )
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
