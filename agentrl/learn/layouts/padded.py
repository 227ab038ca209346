"""Every sequence a line of its own, padded on the right."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Int
from numpy import ndarray

from agentrl.errors import ConfigError
from agentrl.learn.context_parallel import ContextGroup
from agentrl.learn.sequence_layout import MeasuredSequences, ModelInputs, TokenSequence
from agentrl.models.vision.encoder_cache import EncoderCache
from agentrl.models.vision.model import SequenceImages

PADDING_TOKENS = 256
"""About what the fixed cost of one more forward and backward pass is worth on a CPU."""


@dataclass(frozen=True, slots=True)
class LimitedLayout(ABC):
    """Base of the layouts: the most places of a block, and what encodes the policy's images."""

    limit_tokens: int
    images: EncoderCache | None = None
    """None where the policy takes no images."""
    context: ContextGroup | None = None
    """The ranks that divide a line between them; a layout of several lines has none."""

    @abstractmethod
    def measure(self, sequences: Sequence[TokenSequence]) -> MeasuredSequences:
        """Return the lengths of the sequences and what they share."""

    def plan(self, sequences: Sequence[TokenSequence]) -> list[list[int]]:
        """Return the sequence indices of each block, each sequence once."""
        return self.measure(sequences).plan(self.limit_tokens)


@dataclass(frozen=True, slots=True)
class PaddedWidths:
    """Widths of sequences that are padded to the widest of their block."""

    widths: tuple[int, ...]

    def places(self, indices: Sequence[int]) -> int:
        return len(indices) * max((self.widths[i] for i in indices), default=0)

    def plan(self, limit_tokens: int) -> list[list[int]]:
        return plan(self.widths, limit_tokens=limit_tokens)


@dataclass(frozen=True, slots=True)
class PaddedLayout(LimitedLayout):
    """Lines of similar length together, at most `limit_tokens` with their padding."""

    def measure(self, sequences: Sequence[TokenSequence]) -> PaddedWidths:
        return PaddedWidths(tuple(forward_tokens(s.mask) for s in sequences))

    def tokens(self, sequences: Sequence[TokenSequence], *, device: torch.device) -> ModelInputs:
        """Return the sequences as one padded block; what comes after the last True of a mask is
        cut off, because nothing that counts depends on it."""
        widths = [forward_tokens(s.mask) for s in sequences]
        pairs = list(zip(sequences, widths, strict=True))
        mask = pad([s.mask[1 : width + 1] for s, width in pairs])
        inputs = pad([s.token_ids[:width] for s, width in pairs]).astype(np.int64)
        targets = pad([s.token_ids[1 : width + 1] for s, width in pairs]).astype(np.int64)
        predictions = np.flatnonzero(mask)
        return ModelInputs(
            inputs=torch.from_numpy(inputs).to(device),
            predictions=torch.from_numpy(predictions).to(device),
            targets=torch.from_numpy(targets.ravel()[predictions]).to(device),
            entries=torch.arange(len(predictions), device=device),
            mask=torch.from_numpy(mask).to(device),
            shown=collect_images(
                sequences, [(i, np.arange(w)) for i, w in enumerate(widths)], self.images
            ),
        )


def forward_tokens(mask: Sequence[bool] | Bool[ndarray, " tokens"]) -> int:
    """Return the index of the last True, which is predicted from the tokens before it."""
    indices = np.flatnonzero(mask)
    return int(indices[-1]) if len(indices) else 0


def pad(rows: Sequence[ndarray]) -> ndarray:
    """Return the rows as one array, filled with zeros on the right."""
    dtype = np.result_type(*{row.dtype for row in rows})
    block = np.zeros((len(rows), max(len(row) for row in rows)), dtype)
    for row, values in zip(block, rows, strict=True):
        row[: len(values)] = values
    return block


def plan(widths: Sequence[int], *, limit_tokens: int) -> list[list[int]]:
    """Return the sequence indices of each micro-batch; rows x widest is at most `limit_tokens`.

    Longest first, and a new micro-batch begins where padding would cost more than another pass:
    more than `PADDING_TOKENS` and more than an eighth of what the micro-batch holds.
    """
    batches: list[list[int]] = []
    widest = batch_tokens = 0
    for index in sorted(range(len(widths)), key=lambda i: (-widths[i], i)):
        check_length(widths[index], limit_tokens=limit_tokens)
        padded = widest * (len(batches[-1]) + 1) if batches else 0
        padding = padded - batch_tokens - widths[index]
        if not batches or padded > limit_tokens or padding > max(PADDING_TOKENS, batch_tokens // 8):
            batches.append([])
            widest, batch_tokens = widths[index], 0
        batches[-1].append(index)
        batch_tokens += widths[index]
    return batches


def collect_images(
    sequences: Sequence[TokenSequence],
    laid: Sequence[tuple[int, Int[ndarray, " _"]]],
    cache: EncoderCache | None,
) -> tuple[SequenceImages, ...]:
    """Return the images of the sequences that show any. `laid` holds for each sequence its line and
    the places of the tokens that are read."""
    images: list[SequenceImages] = []
    for sequence, (line, places) in zip(sequences, laid, strict=True):
        spans = tuple(span for span in sequence.images if span.stop <= len(places))
        if spans:
            images.append(SequenceImages(line, torch.from_numpy(places), spans, cache))
    return tuple(images)


def check_length(tokens: int, *, limit_tokens: int) -> None:
    """Raise `ConfigError` for a sequence that no forward pass may hold."""
    if tokens > limit_tokens:
        raise ConfigError(
            f"a sequence needs {tokens} tokens in one forward pass, but "
            f"micro_batch_tokens={limit_tokens} allows fewer; set it to at least {tokens}"
        )
