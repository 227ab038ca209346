"""Sequences one after the other in one line, without padding."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from agentrl.learn.layouts.packing import pack
from agentrl.learn.layouts.padded import check_length, forward_tokens
from agentrl.learn.layouts.trie import flatten, keep_order, read, tokens_of
from agentrl.learn.sequence_layout import ModelInputs, TokenSequence
from agentrl.models.vision.processor import ImageProcessor


@dataclass(frozen=True, slots=True)
class PackedLayout:
    """Lines of at most `limit_tokens`; the sequences of a line do not see each other."""

    limit_tokens: int
    processor: ImageProcessor | None = None
    """Image processor of the policy; None where it takes no images."""

    def limited(self, limit_tokens: int) -> "PackedLayout":
        """Return the same layout with another limit."""
        return replace(self, limit_tokens=limit_tokens)

    def places(self, sequences: Sequence[TokenSequence]) -> int:
        """Return the number of places in the line."""
        return sum(forward_tokens(s.mask) for s in sequences)

    def plan(self, sequences: Sequence[TokenSequence]) -> list[list[int]]:
        """Return the sequence indices of each line; `ConfigError` for one over the limit."""
        lengths = [len(row) for row in read(sequences)]
        check_length(max(lengths, default=0), limit_tokens=self.limit_tokens)
        return pack(lengths, [0] * len(lengths), limit_tokens=self.limit_tokens)

    def tokens(self, sequences: Sequence[TokenSequence], *, device: torch.device) -> ModelInputs:
        """Return the sequences as one line."""
        rows = read(sequences)
        trie = flatten(rows, keep_order(rows))
        return tokens_of(sequences, trie, device=device, processor=self.processor)
