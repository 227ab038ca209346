"""Inputs and predictions of a forward pass, whatever the layout of the sequences in it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Int
from numpy import ndarray
from torch import Tensor

from agentrl.learn.ancestry import AncestorMask
from agentrl.learn.context_parallel import ContextSplit
from agentrl.message import ImageSpan
from agentrl.models.vision.model import SequenceImages


@dataclass(frozen=True, slots=True, eq=False)
class ModelInputs:
    """Sequences side by side, laid out for one forward pass.

    Two views of the same thing. The model sees `inputs`, `lines` x `length`, in which sequences may
    be padded, packed one after the other, or share what they begin with. Losses see `rows` x
    `width`: one row per sequence, shifted by one, so that place t stands for token t + 1.
    `entries` goes from the second view to the first.
    """

    inputs: Int[Tensor, "lines length"]
    predictions: Int[Tensor, " chosen"]
    """Indices in the flattened `inputs` at which the model is asked for the next token."""
    targets: Int[Tensor, " chosen"]
    """Next token of each prediction. Each pair of prediction and target is there once, however many
    sequences share it."""
    entries: Int[Tensor, " sampled"]
    """The index in `predictions` of each True of `mask`, in row-major order."""
    mask: Bool[Tensor, "rows width"]
    """True on the tokens of the sequences that train."""
    positions: Int[Tensor, "lines length"] | None = None
    """Distance from the beginning of the sequence; None counts from 0 in every line."""
    ancestry: AncestorMask | None = None
    """The places of the only line that see each other. None lets every later place see a place."""
    shown: tuple[SequenceImages, ...] = ()
    split: ContextSplit | None = None
    """This rank's part of the only line; None where every rank computes whole lines."""


@runtime_checkable
class TokenSequence(Protocol):
    """Sequence as layouts see it."""

    @property
    def token_ids(self) -> Int[ndarray, " tokens"]:
        """The whole context."""
        ...

    @property
    def mask(self) -> Bool[ndarray, " tokens"]:
        """The tokens that train."""
        ...

    @property
    def images(self) -> tuple[ImageSpan, ...]:
        """Images in the tokens."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class MaskedTokens:
    """The plainest `TokenSequence`."""

    token_ids: Int[ndarray, " tokens"]
    mask: Bool[ndarray, " tokens"]
    images: tuple[ImageSpan, ...] = ()


@runtime_checkable
class MeasuredSequences(Protocol):
    """Sequences as a layout measured them, to be planned with as many limits as one likes."""

    def places(self, indices: Sequence[int]) -> int:
        """Return the number of places in the block of these sequences, padding included."""
        ...

    def plan(self, limit_tokens: int) -> list[list[int]]:
        """Return the sequence indices of each block of at most so many places, each sequence once.

        Raises `ConfigError` for a sequence that is longer.
        """
        ...


@runtime_checkable
class SequenceLayout(Protocol):
    """Arrangement of sequences in forward passes. None of them changes any result."""

    @property
    def limit_tokens(self) -> int:
        """Most places of one block."""
        ...

    def measure(self, sequences: Sequence[TokenSequence]) -> MeasuredSequences:
        """Return the lengths of the sequences and what they share."""
        ...

    def plan(self, sequences: Sequence[TokenSequence]) -> list[list[int]]:
        """Return the sequence indices of each block, each sequence once."""
        ...

    def tokens(self, sequences: Sequence[TokenSequence], *, device: torch.device) -> ModelInputs:
        """Return those sequences as one block."""
        ...


def no_tokens(device: torch.device) -> ModelInputs:
    """Return the input of a pass that has no sequences: it runs, and nothing comes of it."""
    none = torch.zeros(0, dtype=torch.int64, device=device)
    return ModelInputs(
        inputs=torch.zeros(1, 2, dtype=torch.int64, device=device),
        predictions=torch.zeros(1, dtype=torch.int64, device=device),
        targets=torch.zeros(1, dtype=torch.int64, device=device),
        entries=none,
        mask=torch.zeros(0, 1, dtype=torch.bool, device=device),
    )
