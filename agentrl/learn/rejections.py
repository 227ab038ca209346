"""Rejections: what a correction drops. `learn/correction.py` is their contract."""

import math
from functools import partial
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from agentrl.config.learning.rejection import (
    DivergenceRejection,
    OpsmRejection,
    Statistic,
    VetoRejection,
    resolve_bounds,
)
from agentrl.learn.correction import PolicyMismatch, RejectionFunction
from agentrl.learn.loss import LOG_RATIO_LIMIT
from agentrl.learn.method import LearnMethod, Need, always, bind_knobs


def statistic(tokens: PolicyMismatch, name: Statistic) -> Float[Tensor, "rows width"]:
    """Return an estimate of KL(behaviour || proximal) on every token; that of a row on all of it.

    With d = log(proximal / behaviour): k1 = -d, k2 = d^2 / 2, k3 = e^d - 1 - d (Schulman 2020,
    "Approximating KL divergence"). Only the exponential of k3 has d cut to +-20: cut before it is
    summed, d would not give the product of the ratios. A row without sampled tokens has 0.
    """
    level, _, kind = name.rpartition("_")
    d = torch.where(tokens.mask, tokens.gaps, 0.0)
    match kind:
        case "k1":
            each = -d
        case "k2":
            each = d.square() / 2
        case _:
            cut = d.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
            each = torch.expm1(cut) - cut
    match level:
        case "token":
            return each
        case "seq_sum":
            row = each.sum(dim=-1, keepdim=True)
        case "seq_mean":
            counts = tokens.mask.sum(dim=-1, keepdim=True)
            row = each.sum(dim=-1, keepdim=True) / counts.clamp(min=1)
        case _:
            row = each.amax(dim=-1, keepdim=True)
    return row.expand_as(each)


def keep_within(
    tokens: PolicyMismatch, *, name: Statistic, lower: float, upper: float
) -> Bool[Tensor, "rows width"]:
    """Return the mask of the tokens that are kept. For k1 they are those with `lower` <= ratio <=
    `upper`, else those whose statistic is at most `upper`.

    Source: verl's rollout rejection sampling with the bounds as its documentation states them. Its
    code holds them against k1, the logarithm of the inverse ratio, which differs unless they are
    each other's inverse.
    """
    values = statistic(tokens, name)
    if name.endswith("k1"):
        return (math.log(lower) <= -values) & (-values <= math.log(upper))
    return values <= upper


def _bind_divergence(section: DivergenceRejection) -> RejectionFunction:
    lower, upper = resolve_bounds(section)
    return partial(keep_within, name=section.statistic, lower=lower, upper=upper)


def veto(tokens: PolicyMismatch, *, floor: float = 1e-4) -> Bool[Tensor, "rows width"]:
    """Return rows in which no sampled token has proximal / behaviour below `floor`.

    Source: slime's mismatch helper.
    """
    below = tokens.mask & (tokens.gaps < math.log(floor))
    return (~below.any(dim=-1, keepdim=True)).expand_as(tokens.mask)


def opsm(
    tokens: PolicyMismatch,
    *,
    delta: float = 1e-4,
    anchor: Literal["proximal", "behaviour"] = "proximal",
) -> Bool[Tensor, "rows width"]:
    """Return all but the tokens of negative advantage in rows with mean log(anchor / current)
    above `delta`.

    Source: slime (OPSM), from DeepSeek-V3.2's sequence masking, which compares with the policy
    that sampled: `anchor` behaviour.
    """
    moved = -tokens.drift if anchor == "proximal" else -(tokens.drift + tokens.gaps)
    total = torch.where(tokens.mask, moved, 0.0).sum(dim=-1, keepdim=True)
    mean = total / tokens.mask.sum(dim=-1, keepdim=True).clamp(min=1)
    return ~((tokens.advantages < 0) & (mean > delta))


def _find_opsm_needs(section: OpsmRejection) -> frozenset[Need]:
    return frozenset({"behaviour logprobs"} if section.anchor == "behaviour" else ())


METHODS: tuple[LearnMethod[RejectionFunction], ...] = (
    LearnMethod(
        DivergenceRejection,
        _bind_divergence,
        "verl, rollout rejection sampling; estimators: Schulman 2020",
        always("behaviour logprobs"),
    ),
    LearnMethod(
        VetoRejection, bind_knobs(veto), "slime, mismatch helper", always("behaviour logprobs")
    ),
    LearnMethod(
        OpsmRejection, bind_knobs(opsm), "slime; DeepSeek-AI 2025 (DeepSeek-V3.2)", _find_opsm_needs
    ),
)
