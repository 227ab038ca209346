"""Aggregation of token losses to one number. Denominators are those of the whole optimiser step."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from agentrl.config.learning.loss import Aggregation


@dataclass(frozen=True, slots=True)
class LossDenominators:
    """Denominators of an optimiser step: sampled tokens, and sequences that have any.

    Counted over all its micro-batches and before anything is rejected: dividing by the survivors
    would weigh them more, and dividing per micro-batch would make the result depend on the split.
    """

    tokens: int
    sequences: int

    @classmethod
    def from_token_counts(cls, sampled_tokens: Iterable[int]) -> "LossDenominators":
        """Return the counts of sequences with so many sampled tokens each."""
        token_counts = [n for n in sampled_tokens if n]
        return cls(sum(token_counts), len(token_counts))


def aggregate(
    losses: Float[Tensor, "rows width"],
    mask: Bool[Tensor, "rows width"],
    *,
    how: Aggregation,
    counts: LossDenominators,
    horizon_tokens: int | None = None,
) -> Float[Tensor, ""]:
    """Return this micro-batch's share of the loss; the shares of a step add up to its loss.

    `mask` is the original one, whatever was rejected: a rejected token is a loss of 0 under it.
    Losses off the mask may hold anything, NaN too. A sequence without sampled tokens adds nothing
    and is in no count. `horizon_tokens` is the constant of seq-mean-token-sum-norm, which keeps a
    long sequence's tokens at the weight of a short one's (Dr.GRPO, Liu et al. 2025, arXiv
    2503.20783); `ValueError` where it is missing.
    """
    sums = torch.where(mask, losses, 0.0).sum(dim=-1)
    match how:
        case "token-mean":
            return sums.sum() / max(counts.tokens, 1)
        case "token-sum":
            return sums.sum()
        case "seq-mean-token-sum":
            return sums.sum() / max(counts.sequences, 1)
        case "seq-mean-token-sum-norm":
            if horizon_tokens is None:
                raise ValueError(
                    "seq-mean-token-sum-norm divides by a constant, but horizon_tokens is None; "
                    "set learn.horizon_tokens, for example to the length of the longest answer"
                )
            return sums.sum() / (max(counts.sequences, 1) * horizon_tokens)
        case "seq-mean-token-mean":
            means = sums / mask.sum(dim=-1).clamp(min=1)
            return means.sum() / max(counts.sequences, 1)
