"""Sequences in one line, every prefix that several of them share computed once."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from agentrl.learn.layouts.packing import pack
from agentrl.learn.layouts.padded import check_length
from agentrl.learn.layouts.trie import flatten, read, sort_by_prefix, tokens_of
from agentrl.learn.sequence_layout import ModelInputs, TokenSequence
from agentrl.models.vision.processor import ImageProcessor


@dataclass(frozen=True, slots=True)
class PrefixTreeLayout:
    """Lines of at most `limit_tokens`, each a trie of its sequences.

    What is shared is found in the token ids and the images alone: turns before a branch, the prompt
    of a group, and the system prompt of all of them.
    """

    limit_tokens: int
    processor: ImageProcessor | None = None
    """Image processor of the policy; None where it takes no images."""

    def limited(self, limit_tokens: int) -> "PrefixTreeLayout":
        """Return the same layout with another limit."""
        return replace(self, limit_tokens=limit_tokens)

    def places(self, sequences: Sequence[TokenSequence]) -> int:
        """Return the number of places in the line, each shared prefix once."""
        rows = read(sequences)
        return sum(map(len, rows)) - sum(sort_by_prefix(rows).shared)

    def plan(self, sequences: Sequence[TokenSequence]) -> list[list[int]]:
        """Return the sequence indices of each line; `ConfigError` for one over the limit."""
        rows = read(sequences)
        check_length(max(map(len, rows), default=0), limit_tokens=self.limit_tokens)
        ordered = sort_by_prefix(rows)
        lengths = [len(rows[i]) for i in ordered.order]
        lines = pack(lengths, ordered.shared, limit_tokens=self.limit_tokens)
        return [[ordered.order[i] for i in line] for line in lines]

    def tokens(self, sequences: Sequence[TokenSequence], *, device: torch.device) -> ModelInputs:
        """Return the sequences as one line."""
        rows = read(sequences)
        trie = flatten(rows, sort_by_prefix(rows))
        return tokens_of(sequences, trie, device=device, processor=self.processor)
