"""Between the engine and the trainer: how much a token counts that another policy sampled.

Three policies: the behaviour policy mu sampled the token, the proximal policy is the anchor of the
clip, the current policy is being optimised. A correction looks at proximal over behaviour and
never carries gradient.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from agentrl.learn.loss import LOG_RATIO_LIMIT


@dataclass(frozen=True, slots=True, eq=False)
class PolicyMismatch:
    """Inputs of corrections and rejections, one row per sequence. Nothing has gradient, and
    everything is 0 off the mask."""

    gaps: Float[Tensor, "rows width"]
    """log(proximal / behaviour), not cut."""
    drift: Float[Tensor, "rows width"]
    """log(current / proximal), not cut."""
    advantages: Float[Tensor, "rows width"]
    mask: Bool[Tensor, "rows width"]
    turns: Int[Tensor, "rows width"]
    ages: Int[Tensor, "rows width"]
    """Versions by which the sampling policy is older than the trainer's weights."""


@dataclass(frozen=True, slots=True, eq=False)
class CorrectionWeights:
    """Factors on the loss of each token; 0 off the mask."""

    applied: Float[Tensor, "rows width"]
    raw: Float[Tensor, "rows width"]
    """Before truncation; its spread says how far the policies are apart."""
    cap: float = math.inf
    """Largest weight that is not truncated."""


CorrectionFunction = Callable[[PolicyMismatch], CorrectionWeights]


@dataclass(frozen=True, slots=True)
class PlannedCorrection:
    """A correction that depends on all tokens of an optimiser step, such as a normalised one.

    `plan` gets them in one block and returns the correction for its micro-batches.
    """

    plan: Callable[[PolicyMismatch], CorrectionFunction]


AnyCorrectionFunction = CorrectionFunction | PlannedCorrection

RejectionFunction = Callable[[PolicyMismatch], Bool[Tensor, "rows width"]]
"""The rejection slot: which tokens of the mask are kept. What is rejected has a loss of 0 and stays
in every denominator."""


def log_ratio(
    proximal: Float[Tensor, "rows width"],
    behaviour: Float[Tensor, "rows width"],
    mask: Bool[Tensor, "rows width"],
) -> Float[Tensor, "rows width"]:
    """Return log(proximal / behaviour), detached.

    0, which is a weight of 1, where the behaviour log-prob is not finite and off the mask.
    """
    return torch.where(mask, proximal - fill_unknown(behaviour, instead=proximal), 0.0).detach()


def fill_unknown(
    behaviour: Float[Tensor, "rows width"], *, instead: Float[Tensor, "rows width"]
) -> Float[Tensor, "rows width"]:
    """Return the behaviour log-probs, with `instead` where they are not finite."""
    return torch.where(behaviour.isfinite(), behaviour, instead)


def token_ratio(tokens: PolicyMismatch) -> Float[Tensor, "rows width"]:
    """Return proximal / behaviour of each token, the logarithm cut to +-20; 0 off the mask."""
    cut = tokens.gaps.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return torch.where(tokens.mask, cut.exp(), 0.0)
