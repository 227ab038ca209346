"""Sequences in one line: one after the other, or every prefix that several share once."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from numpy import ndarray

from agentrl.learn.layouts.packing import pack
from agentrl.learn.layouts.padded import LimitedLayout, check_length
from agentrl.learn.layouts.trie import (
    SortedSequences,
    flatten,
    keep_order,
    read,
    sort_by_prefix,
    tokens_of,
)
from agentrl.learn.sequence_layout import ModelInputs, TokenSequence


@dataclass(frozen=True, slots=True)
class PackedLayout(LimitedLayout):
    """Lines of at most `limit_tokens`; the sequences of a line do not see each other."""

    def sort(self, rows: Sequence[Int[ndarray, " _"]]) -> SortedSequences:
        """Return the order of sequences in a line, and what each shares with the one before."""
        return keep_order(rows)

    def places(self, sequences: Sequence[TokenSequence]) -> int:
        rows = read(sequences)
        return sum(map(len, rows)) - sum(self.sort(rows).shared)

    def plan(self, sequences: Sequence[TokenSequence]) -> list[list[int]]:
        rows = read(sequences)
        check_length(max(map(len, rows), default=0), limit_tokens=self.limit_tokens)
        ordered = self.sort(rows)
        lengths = [len(rows[i]) for i in ordered.order]
        lines = pack(lengths, ordered.shared, limit_tokens=self.limit_tokens)
        return [[ordered.order[i] for i in line] for line in lines]

    def tokens(self, sequences: Sequence[TokenSequence], *, device: torch.device) -> ModelInputs:
        rows = read(sequences)
        trie = flatten(rows, self.sort(rows))
        return tokens_of(sequences, trie, device=device, processor=self.processor)


@dataclass(frozen=True, slots=True)
class PrefixTreeLayout(PackedLayout):
    """Lines of at most `limit_tokens`, each a trie of its sequences.

    What is shared is found in the token ids and the images alone: turns before a branch, the prompt
    of a group, and the system prompt of all of them.
    """

    def sort(self, rows: Sequence[Int[ndarray, " _"]]) -> SortedSequences:
        return sort_by_prefix(rows)
