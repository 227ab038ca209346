"""Aggregation of token losses to one number. Denominators are those of the whole optimiser step."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from agentrl.config.learning.loss import Aggregation


@dataclass(frozen=True, slots=True)
class LossDenominators:
    """Denominators of an optimiser step: sampled tokens, and trajectories that have any.

    Counted over all its micro-batches and before anything is rejected: dividing by the survivors
    would weigh them more, and dividing per micro-batch would make the result depend on the split.
    """

    tokens: int
    sequences: float
    """A context among several of its trajectory counts as its share of that trajectory's tokens."""

    @classmethod
    def from_token_counts(
        cls, sampled_tokens: Iterable[int], shares: Iterable[float] | None = None
    ) -> "LossDenominators":
        """Return the counts of sequences with so many sampled tokens each, and of such `shares` of
        a trajectory; by default each is a whole one."""
        token_counts = list(sampled_tokens)
        weights = [1.0] * len(token_counts) if shares is None else shares
        whole = math.fsum(share for n, share in zip(token_counts, weights, strict=True) if n)
        return cls(sum(token_counts), whole)


def aggregate(
    losses: Float[Tensor, "rows width"],
    mask: Bool[Tensor, "rows width"],
    *,
    how: Aggregation,
    counts: LossDenominators,
    horizon_tokens: int | None = None,
    shares: Float[Tensor, " rows"] | None = None,
) -> Float[Tensor, ""]:
    """Return this micro-batch's share of the loss; the shares of a step add up to its loss.

    `mask` is the original one, whatever was rejected: a rejected token is a loss of 0 under it.
    Losses off the mask may hold anything, NaN too. A sequence without sampled tokens adds nothing
    and is in no count. `horizon_tokens` is the constant of seq-mean-token-sum-norm, which keeps a
    long sequence's tokens at the weight of a short one's (Dr.GRPO, Liu et al. 2025, arXiv
    2503.20783); `ValueError` where it is missing. `shares` are the shares of their trajectories
    that rows are, None where all are whole: the contexts of a trajectory have its weight together.
    """
    sums = torch.where(mask, losses, 0.0).sum(dim=-1)
    match how:
        case "token-mean":
            return sums.sum() / max(counts.tokens, 1)
        case "token-sum":
            return sums.sum()
        case "seq-mean-token-sum":
            return sums.sum() / (counts.sequences or 1)
        case "seq-mean-token-sum-norm":
            if horizon_tokens is None:
                raise ValueError(
                    "seq-mean-token-sum-norm divides by a constant, but horizon_tokens is None; "
                    "set learn.horizon_tokens, for example to the length of the longest answer"
                )
            return sums.sum() / ((counts.sequences or 1) * horizon_tokens)
        case "seq-mean-token-mean":
            means = sums / mask.sum(dim=-1).clamp(min=1)
            if shares is not None:
                means = means * shares
            return means.sum() / (counts.sequences or 1)
