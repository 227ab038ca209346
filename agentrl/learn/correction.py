"""Between the engine and the trainer: how much a token counts that another policy sampled.

Three policies: the behaviour policy mu sampled the token, the proximal policy is the trainer's at
batch start, the current policy is being optimised. A correction looks at proximal over behaviour,
never at the current policy, and never carries gradient.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from agentrl.learn.loss import LOG_RATIO_LIMIT


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """What the loss of each token is multiplied by; 0 off the mask."""

    applied: Float[Tensor, "rows width"]
    raw: Float[Tensor, "rows width"]
    """Before truncation; its spread says how far the policies are apart."""
    cap: float = math.inf
    """Where truncation begins."""


CorrectionFunction = Callable[
    [Float[Tensor, "rows width"], Bool[Tensor, "rows width"]],
    Weights,
]
"""The correction slot: from log(proximal / behaviour), 0 off the mask, and the mask."""


def log_ratio(
    proximal: Float[Tensor, "rows width"],
    behaviour: Float[Tensor, "rows width"],
    mask: Bool[Tensor, "rows width"],
) -> Float[Tensor, "rows width"]:
    """Return log(proximal / behaviour), detached.

    0, which is a weight of 1, where the behaviour log-prob is not finite and off the mask.
    """
    return torch.where(mask, proximal - known(behaviour, instead=proximal), 0.0).detach()


def known(
    behaviour: Float[Tensor, "rows width"], *, instead: Float[Tensor, "rows width"]
) -> Float[Tensor, "rows width"]:
    """Return the behaviour log-probs, with `instead` where they are not finite."""
    return torch.where(behaviour.isfinite(), behaviour, instead)


def uncorrected(gaps: Float[Tensor, "rows width"], mask: Bool[Tensor, "rows width"]) -> Weights:
    """Return weight 1 everywhere; the ratio of the tokens is still measured."""
    return Weights(applied=mask.float(), raw=token_ratio(gaps, mask))


def token_truncated(
    gaps: Float[Tensor, "rows width"], mask: Bool[Tensor, "rows width"], *, cap: float = 2.0
) -> Weights:
    """Return min(proximal / behaviour, cap) of each token.

    Source: Yao et al. 2025 (truncated importance sampling, Flash-RL).
    """
    raw = token_ratio(gaps, mask)
    return Weights(applied=raw.clamp(max=cap), raw=raw, cap=cap)


def sequence_truncated(
    gaps: Float[Tensor, "rows width"], mask: Bool[Tensor, "rows width"], *, cap: float = 2.0
) -> Weights:
    """Return min(product of a row's ratios, cap) on every sampled token of the row.

    The log-ratios are summed first and the sum is cut to +-20, so that two large ones of opposite
    sign still cancel.
    """
    total = torch.where(mask, gaps, 0.0).sum(dim=-1, keepdim=True)
    product = total.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    raw = torch.where(mask, product, 0.0)
    return Weights(applied=raw.clamp(max=cap), raw=raw, cap=cap)


def token_ratio(
    gaps: Float[Tensor, "rows width"], mask: Bool[Tensor, "rows width"]
) -> Float[Tensor, "rows width"]:
    """Return proximal / behaviour of each token, the logarithm cut to +-20; 0 off the mask."""
    return torch.where(mask, gaps.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp(), 0.0)
