"""Weights of mean 1 over an optimiser step."""

from dataclasses import replace

from jaxtyping import Bool, Float
from torch import Tensor

from agentrl.config.learning.correction import Level
from agentrl.learn.correction import (
    CorrectionFunction,
    CorrectionWeights,
    PlannedCorrection,
    PolicyMismatch,
)

LEAST_MEAN = 1e-8
"""A mean weight up to this is left alone: dividing by it would blow up what is left."""


def normalised(weigh: CorrectionFunction, *, level: Level) -> PlannedCorrection:
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
