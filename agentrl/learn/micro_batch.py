"""Step 6 of the flow: samples with their credit become micro-batches."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from torch import Tensor

from agentrl.learn.layouts.padded import forward_tokens, pad
from agentrl.learn.sample import TrainingSample
from agentrl.learn.sequence_layout import ModelInputs, SequenceLayout
from agentrl.message import ImageSpan


@dataclass(frozen=True, slots=True)
class CreditedSample:
    """A sample with the credit of its tokens, ready to train."""

    sample: TrainingSample
    advantages: Float[ndarray, " tokens"]
    group: int = 0
    """Place of its group in the batch."""
    share: float = 1.0
    """Share of its trajectory's tokens that train in it: 1, unless it is one context of several."""

    @property
    def token_ids(self) -> Int[ndarray, " tokens"]:
        """Return the sample's whole context."""
        return self.sample.token_ids

    @property
    def mask(self) -> Bool[ndarray, " tokens"]:
        """True on the tokens that train."""
        return self.sample.mask

    @property
    def images(self) -> tuple[ImageSpan, ...]:
        """Images in the context."""
        return self.sample.images

    @property
    def is_idle(self) -> bool:
        """True when no token has an advantage and a weight: loss and gradient are zero too."""
        weights = self.sample.weights
        credit = self.advantages if weights is None else self.advantages * weights
        return not ((credit != 0) & self.sample.mask).any()

    @property
    def forward_tokens(self) -> int:
        """Number of tokens of a forward pass: all before the last sampled one."""
        return forward_tokens(self.sample.mask)


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatch:
    """Input of one forward and backward pass. Everything but `tokens` is `rows` x `width`, one row
    per sequence, shifted like the mask, and 0 off the mask."""

    tokens: ModelInputs
    advantages: Float[Tensor, "rows width"]
    behaviour: Float[Tensor, "rows width"]
    versions: Int[Tensor, "rows width"]
    turns: Int[Tensor, "rows width"]
    proximal: Float[Tensor, "rows width"] | None = None
    reference: Float[Tensor, "rows width"] | None = None
    values: Float[Tensor, "rows width"] | None = None
    returns: Float[Tensor, "rows width"] | None = None
    weights: Float[Tensor, "rows width"] | None = None
    """Factor on the loss of each token; None is 1 for all."""
    other_prompt: Bool[Tensor, "rows 1"] | None = None
    """True for rows after another prompt than they were sampled after; None where there is none."""
    shares: Float[Tensor, " rows"] | None = None
    """Share of its trajectory that each row is; None where all are whole."""

    @property
    def mask(self) -> Bool[Tensor, "rows width"]:
        """True on predictions of sampled tokens."""
        return self.tokens.mask


def micro_batch(
    rows: Sequence[CreditedSample], *, layout: SequenceLayout, device: torch.device
) -> MicroBatch:
    """Return rows as one block. What is optional in a sample is there in all of them or in none."""
    samples = [row.sample for row in rows]
    tokens = layout.tokens(samples, device=device)

    def align(values: Sequence[ndarray], dtype: torch.dtype = torch.float32) -> Tensor:
        cut = [x[1 : row.forward_tokens + 1] for row, x in zip(rows, values, strict=True)]
        block = torch.from_numpy(pad(cut)).to(device=device, dtype=dtype)
        return torch.where(tokens.mask, block, torch.zeros((), dtype=dtype, device=device))

    def optional(values: Sequence[ndarray | None]) -> Tensor | None:
        there = [x for x in values if x is not None]
        return align(there) if there else None

    return MicroBatch(
        tokens=tokens,
        advantages=align([row.advantages for row in rows]),
        behaviour=align([s.behaviour for s in samples]),
        versions=align([s.versions for s in samples], torch.int64),
        turns=align([s.turns for s in samples], torch.int64),
        proximal=optional([s.proximal for s in samples]),
        reference=optional([s.reference for s in samples]),
        values=optional([s.values for s in samples]),
        returns=optional([s.returns for s in samples]),
        weights=optional([s.weights for s in samples]),
        other_prompt=torch.tensor([[s.other_prompt] for s in samples], device=device)
        if any(s.other_prompt for s in samples)
        else None,
        shares=torch.tensor([row.share for row in rows], device=device)
        if any(row.share < 1 for row in rows)
        else None,
    )


def unshift(values: Float[Tensor, " width"], sample: TrainingSample) -> Float[ndarray, " tokens"]:
    """Return a row of a micro-batch at the places of the sample's tokens, 0 where none stood.

    Like all arrays of a sample it is read-only.
    """
    placed = np.zeros(len(sample.token_ids))
    width = min(len(values), len(placed) - 1)
    placed[1 : width + 1] = values[:width].double().cpu().numpy()
    placed.flags.writeable = False
    return placed
