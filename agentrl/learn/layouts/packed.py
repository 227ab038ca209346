"""Sequences in one line: one after the other, or every prefix that several share once."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int
from numpy import ndarray

from agentrl.learn.layouts.packing import count_places, pack
from agentrl.learn.layouts.padded import LimitedLayout, check_length
from agentrl.learn.layouts.trie import (
    SortedSequences,
    fill_up,
    flatten,
    keep_order,
    read,
    sort_by_prefix,
    tokens_of,
)
from agentrl.learn.sequence_layout import ModelInputs, TokenSequence


@dataclass(frozen=True, slots=True, eq=False)
class LineLengths:
    """Lengths of sequences in the order of a line, and what each shares with the one before."""

    order: Int[ndarray, " sequences"]
    lengths: Int[ndarray, " sequences"]
    shared: Int[ndarray, " sequences"]
    rank: Int[ndarray, " sequences"]
    """The place of each sequence in the order."""

    def places(self, indices: Sequence[int]) -> int:
        chosen = np.sort(self.rank[np.array(indices, dtype=np.int64)])
        return count_places(self.lengths, self.shared, chosen)

    def plan(self, limit_tokens: int) -> list[list[int]]:
        check_length(int(self.lengths.max(initial=0)), limit_tokens=limit_tokens)
        lines = pack(self.lengths, self.shared, limit_tokens=limit_tokens)
        return [self.order[line].tolist() for line in lines]


@dataclass(frozen=True, slots=True)
class PackedLayout(LimitedLayout):
    """Lines of at most `limit_tokens`; the sequences of a line do not see each other."""

    def sort(self, rows: Sequence[Int[ndarray, " _"]]) -> SortedSequences:
        """Return the order of sequences in a line, and what each shares with the one before."""
        return keep_order(rows)

    def measure(self, sequences: Sequence[TokenSequence]) -> "LineLengths":
        rows = read(sequences)
        ordered = self.sort(rows)
        order = np.array(ordered.order, dtype=np.int64)
        lengths = np.array([len(row) for row in rows], dtype=np.int64)
        shared = np.array(ordered.shared, dtype=np.int64)
        return LineLengths(order, lengths[order], shared, rank=np.argsort(order))

    def tokens(self, sequences: Sequence[TokenSequence], *, device: torch.device) -> ModelInputs:
        rows = read(sequences)
        trie = flatten(rows, self.sort(rows))
        context = self.context
        if context is not None:
            trie = fill_up(trie, multiple=context.size)
        return tokens_of(sequences, trie, device=device, images=self.images, context=context)


@dataclass(frozen=True, slots=True)
class PrefixTreeLayout(PackedLayout):
    """Lines of at most `limit_tokens`, each a trie of its sequences.

    What is shared is found in the token ids and the images alone: turns before a branch, the prompt
    of a group, and the system prompt of all of them.
    """

    def sort(self, rows: Sequence[Int[ndarray, " _"]]) -> SortedSequences:
        return sort_by_prefix(rows)
