"""Truncated importance sampling, per token or per sequence; and no correction at all."""

from functools import partial

import torch

from agentrl.config.learning.correction import NoCorrection, TruncatedCorrection
from agentrl.learn.correction import CorrectionFunction, Mismatch, Weights, token_ratio
from agentrl.learn.loss import LOG_RATIO_LIMIT
from agentrl.learn.method import Method, always


def uncorrected(tokens: Mismatch) -> Weights:
    """Return weight 1 everywhere; the ratio of the tokens is still measured."""
    return Weights(applied=tokens.mask.float(), raw=token_ratio(tokens))


def token_truncated(tokens: Mismatch, *, cap: float = 2.0) -> Weights:
    """Return min(proximal / behaviour, cap) of each token.

    Source: Yao et al. 2025 (truncated importance sampling, Flash-RL).
    """
    raw = token_ratio(tokens)
    return Weights(applied=raw.clamp(max=cap), raw=raw, cap=cap)


def sequence_truncated(tokens: Mismatch, *, cap: float = 2.0) -> Weights:
    """Return min(product of a row's ratios, cap) on every sampled token of the row.

    The log-ratios are summed first and the sum is cut to +-20, so that two large ones of opposite
    sign still cancel.
    """
    total = tokens.gaps.sum(dim=-1, keepdim=True)
    product = total.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    raw = torch.where(tokens.mask, product, 0.0)
    return Weights(applied=raw.clamp(max=cap), raw=raw, cap=cap)


def _uncorrected(section: NoCorrection) -> CorrectionFunction:
    return uncorrected


def _truncated(section: TruncatedCorrection) -> CorrectionFunction:
    truncated = {"token": token_truncated, "sequence": sequence_truncated}[section.level]
    return partial(truncated, cap=section.cap)


NONE = Method(NoCorrection, _uncorrected, "")
TRUNCATED = Method(
    TruncatedCorrection,
    _truncated,
    "Yao et al. 2025 (Flash-RL); sequence level: verl",
    always("behaviour logprobs"),
)
