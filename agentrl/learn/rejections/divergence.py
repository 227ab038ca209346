"""Masked importance sampling: what is kept lies within bounds of a divergence estimate."""

import math
from functools import partial

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from agentrl.config.learning.rejection import DivergenceRejection, Statistic
from agentrl.errors import ConfigError
from agentrl.learn.correction import PolicyMismatch, RejectionFunction
from agentrl.learn.loss import LOG_RATIO_LIMIT
from agentrl.learn.method import LearnMethod, always

USUAL: dict[Statistic, tuple[float | None, float]] = {
    "token_k1": (0.5, 2.0),
    "seq_sum_k1": (0.5, 2.0),
    "seq_mean_k1": (0.999, 1.001),
    "token_k2": (None, 2.0),
    "seq_mean_k2": (None, 2.0),
    "seq_sum_k2": (None, 2.5),
    "seq_max_k2": (None, math.log(1e-4) ** 2 / 2),
    "seq_mean_k3": (None, 0.01),
}
"""Lower and upper bound where none is given; that of seq_max_k2 is a veto at 1e-4, both ways."""


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


def _bind(section: DivergenceRejection) -> RejectionFunction:
    name, lower, upper = section.statistic, section.lower, section.upper
    if upper is None:
        if name not in USUAL:
            raise ConfigError(f"learn.rejection upper is null, but {name} has no default; set it")
        usual, upper = USUAL[name]
        lower = usual if lower is None else lower
    if not name.endswith("k1"):
        if lower is not None:
            raise ConfigError(
                f"learn.rejection lower is {lower}, but {name} is bounded only from above, because "
                "it is 0 for equal policies; remove lower"
            )
        return partial(keep_within, name=name, lower=0.0, upper=upper)
    lower = 1 / upper if lower is None else lower
    if lower > upper:
        raise ConfigError(
            f"learn.rejection lower is {lower} and upper is {upper}, so no ratio of {name} lies "
            "between them and everything would be dropped; a single bound must be at least 1"
        )
    return partial(keep_within, name=name, lower=lower, upper=upper)


METHOD = LearnMethod(
    DivergenceRejection,
    _bind,
    "verl, rollout rejection sampling; estimators: Schulman 2020",
    always("behaviour logprobs"),
)
