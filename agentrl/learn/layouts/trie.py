"""Sequences in one line, what they begin with in common stored once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from jaxtyping import Int
from numpy import ndarray

from agentrl.learn.ancestry import AncestorMask
from agentrl.learn.context_parallel import ContextGroup, ContextSplit
from agentrl.learn.layouts.padded import collect_images, forward_tokens, pad
from agentrl.learn.sequence_layout import ModelInputs, TokenSequence
from agentrl.message import Image
from agentrl.models.vision.encoder_cache import EncoderCache

FIRST_TOKENS = 64
"""Tokens by which sequences are sorted at first."""


@dataclass(frozen=True, slots=True, eq=False)
class PrefixTrie:
    """A compressed trie of sequences, or a row of chains, flattened depth first.

    Source: Tree Training (arXiv 2511.00413).
    """

    token_ids: Int[ndarray, " places"]
    positions: Int[ndarray, " places"]
    """The depth of each place, which is its distance from the beginning of every sequence that
    goes through it."""
    ends: Int[ndarray, " places"]
    """The last place below each place, or itself."""
    paths: tuple[Int[ndarray, " _"], ...]
    """The places of each sequence's tokens."""


@dataclass(frozen=True, slots=True, eq=False)
class SortedSequences:
    """Sequences in an order, and how many tokens each begins with that the one before it has."""

    order: tuple[int, ...]
    shared: tuple[int, ...]


def sort_by_prefix(rows: Sequence[Int[ndarray, " _"]]) -> SortedSequences:
    """Return the sequences in the order of their bytes: whatever shares a prefix is neighbours."""
    ordered = list(_sort_after(rows, range(len(rows)), 0))
    return SortedSequences(tuple(i for i, _ in ordered), tuple(n for _, n in ordered))


def _sort_after(
    rows: Sequence[Int[ndarray, " _"]], indices: Sequence[int], begin: int
) -> Iterator[tuple[int, int]]:
    """Yield sequences that are alike up to `begin` in the order of their bytes, each with the
    number of tokens that it shares with the one before it.

    What is compared doubles with every call, so a sequence is read to twice its longest prefix.
    """
    end = max(2 * begin, FIRST_TOKENS)
    keys = {index: rows[index][begin:end].tobytes() for index in indices}
    shared, part = begin, None
    for _, group in groupby(sorted(indices, key=lambda i: (keys[i], i)), key=keys.__getitem__):
        first, *others = group
        before, part = part, rows[first][begin:end]
        if before is not None:
            shared = begin + _common(before, part)
        if others and len(part) == end - begin:
            (first, _), *pairs = _sort_after(rows, [first, *others], end)
        else:
            pairs = [(other, len(rows[other])) for other in others]
        yield first, shared
        yield from pairs


def keep_order(rows: Sequence[Int[ndarray, " _"]]) -> SortedSequences:
    """Return the sequences in their own order, sharing nothing."""
    return SortedSequences(tuple(range(len(rows))), (0,) * len(rows))


def flatten(rows: Sequence[Int[ndarray, " _"]], ordered: SortedSequences) -> PrefixTrie:
    """Return the sequences depth first in one line."""
    total = sum(len(rows[i]) - n for i, n in zip(ordered.order, ordered.shared, strict=True))
    token_ids, positions, ends = (np.zeros(total, dtype=np.int64) for _ in range(3))
    paths = [np.zeros(0, dtype=np.int64)] * len(rows)
    path = paths[0] if rows else np.zeros(0, dtype=np.int64)
    used = 0
    for index, shared in zip(ordered.order, ordered.shared, strict=True):
        ends[path[shared:]] = used - 1
        row = rows[index]
        span = slice(used, used + len(row) - shared)
        token_ids[span] = row[shared:]
        positions[span] = np.arange(shared, len(row))
        path = np.concatenate([path[:shared], np.arange(span.start, span.stop)])
        paths[index] = path
        used = span.stop
    ends[path] = used - 1
    return PrefixTrie(token_ids, positions, ends, tuple(paths))


def fill_up(trie: PrefixTrie, *, multiple: int) -> PrefixTrie:
    """Return the trie with a chain of zeros behind it, as long as a multiple of places takes."""
    used = len(trie.token_ids)
    added = np.arange(-used % multiple)
    return PrefixTrie(
        np.concatenate([trie.token_ids, np.zeros_like(added)]),
        np.concatenate([trie.positions, added]),
        np.concatenate([trie.ends, np.full_like(added, used + len(added) - 1)]),
        trie.paths,
    )


def read(sequences: Sequence[TokenSequence]) -> list[Int[ndarray, " _"]]:
    """Return the tokens of each sequence that a forward pass has to read. Those of an image become
    a negative number of its own: equal ids that show something else are not the same."""
    numbers: dict[Image, int] = {}
    return [_number_images(s, numbers) for s in sequences]


def tokens_of(
    sequences: Sequence[TokenSequence],
    trie: PrefixTrie,
    *,
    device: torch.device,
    images: EncoderCache | None = None,
    context: ContextGroup | None = None,
) -> ModelInputs:
    """Return the sequences as the one line of `trie`, asked once for every token they share."""
    masks = [s.mask[1 : len(path) + 1] for s, path in zip(sequences, trie.paths, strict=True)]
    pairs = list(zip(sequences, trie.paths, masks, strict=True))
    places = np.concatenate([path[mask] for _, path, mask in pairs])
    targets = np.concatenate([s.token_ids[1 : len(c) + 1][c] for s, _, c in pairs])
    base = int(targets.max(initial=0)) + 1
    codes, entries = np.unique(places * base + targets, return_inverse=True)

    split = None
    if context is not None:
        split = ContextSplit.from_predictions(context, codes // base, places=len(trie.token_ids))
    ancestry = AncestorMask.from_positions(trie.positions, trie.ends, device=device)
    return ModelInputs(
        inputs=torch.from_numpy(np.maximum(trie.token_ids, 0))[None].to(device),
        predictions=torch.from_numpy(codes // base).to(device),
        targets=torch.from_numpy(codes % base).to(device),
        entries=torch.from_numpy(entries).to(device),
        mask=torch.from_numpy(pad(masks)).to(device),
        positions=ancestry.positions[None],
        ancestry=ancestry,
        shown=collect_images(sequences, [(0, path) for path in trie.paths], images),
        split=split,
    )


def _number_images(sequence: TokenSequence, numbers: dict[Image, int]) -> Int[ndarray, " _"]:
    tokens = sequence.token_ids[: forward_tokens(sequence.mask)]
    spans = [span for span in sequence.images if span.stop <= len(tokens)]
    if spans:
        tokens = tokens.copy()
    for span in spans:
        tokens[span.start : span.stop] = numbers.setdefault(span.image, -1 - len(numbers))
    return tokens


def _common(first: Int[ndarray, " one"], second: Int[ndarray, " other"]) -> int:
    n = min(len(first), len(second))
    different = first[:n] != second[:n]
    return int(different.argmax()) if different.any() else n
