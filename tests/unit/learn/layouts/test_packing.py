"""Packing, against the rule written down plainly, and as fast as a batch of thousands needs.

Mutants seen caught: the last of equal lines taken; a unit counted by its own tokens only; the most
of the edges between two units taken for what they share; a fork cut at its first edge only; a gap
counted by its first edge.
"""

import time
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import Int
from numpy import ndarray

from agentrl.learn.layouts.packed import PackedLayout, PrefixTreeLayout
from agentrl.learn.layouts.packing import pack
from agentrl.learn.layouts.padded import PaddedLayout
from agentrl.learn.layouts.trie import flatten, sort_by_prefix
from agentrl.learn.sequence_layout import MaskedTokens, SequenceLayout
from agentrl.learn.sharded.balance import split

Span = tuple[int, int]


def pack_plainly(lengths: Sequence[int], shared: Sequence[int], limit: int) -> list[list[int]]:
    """Return what `pack` returns, comparing every unit with every other, token by token."""

    def count(span: Span) -> int:
        start, stop = span
        return lengths[start] + sum(lengths[i] - shared[i] for i in range(start + 1, stop))

    def cut(span: Span) -> Iterator[Span]:
        start, stop = span
        if count(span) <= limit or stop - start == 1:
            yield span
            return
        fork = min(shared[start + 1 : stop])
        edges = [start, *(i for i in range(start + 1, stop) if shared[i] == fork), stop]
        for part in pairwise(edges):
            yield from cut(part)

    def overlap(one: Span, other: Span) -> int:
        first, second = sorted((one, other))
        return min(shared[first[1] : second[0] + 1])

    lines: list[list[Span]] = []
    used: list[int] = []
    units = cut((0, len(lengths))) if lengths else ()
    for unit in sorted(units, key=lambda u: (-count(u), u)):
        saved = [max(overlap(unit, other) for other in line) for line in lines]
        fits = [i for i, n in enumerate(used) if n + count(unit) - saved[i] <= limit]
        if fits:
            index = max(fits, key=lambda i: (saved[i], -i))
            lines[index].append(unit)
            used[index] += count(unit) - saved[index]
        else:
            lines.append([unit])
            used.append(count(unit))
    return [[i for start, stop in line for i in range(start, stop)] for line in lines]


@st.composite
def measured(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Return lengths of sequences, and what each may share with the one before it."""
    lengths = draw(st.lists(st.integers(0, 12), max_size=16))
    shared = [draw(st.integers(0, min(pair))) for pair in pairwise(lengths)]
    return lengths, [0, *shared][: len(lengths)]


@given(measured(), st.integers(1, 40))
def test_lines_are_those_of_the_plain_rule(found: tuple[list[int], list[int]], limit: int) -> None:
    lengths, shared = found
    assert pack(lengths, shared, limit_tokens=limit) == pack_plainly(lengths, shared, limit)


def sequences_of(rows: Sequence[Sequence[int]]) -> list[MaskedTokens]:
    """Return sequences of which all but the last token are read."""
    return [MaskedTokens(np.array([*row, 9]), np.arange(len(row) + 1) == len(row)) for row in rows]


@given(st.lists(st.lists(st.integers(1, 2), max_size=6), min_size=1, max_size=8), st.data())
def test_places_are_those_of_the_block(rows: list[list[int]], data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.sampled_from(range(len(rows))), unique=True))
    sequences = sequences_of(rows)
    kept = [np.array(rows[i], dtype=np.int64) for i in chosen]
    wanted = {
        PaddedLayout: len(kept) * max(map(len, kept), default=0),
        PackedLayout: sum(map(len, kept)),
        PrefixTreeLayout: len(flatten(kept, sort_by_prefix(kept)).token_ids),
    }
    for kind, places in wanted.items():
        assert kind(64).measure(sequences).places(chosen) == places


def make_batch(groups: int, size: int) -> list[MaskedTokens]:
    """Return groups of rollouts that share a system prompt, and a prompt of their own."""
    random = np.random.default_rng(0)

    def draw(count: int) -> Int[ndarray, " tokens"]:
        return random.integers(0, 150_000, count)

    system, batch = draw(60), list[MaskedTokens]()
    for _ in range(groups):
        prompt = np.concatenate([system, draw(40)])
        for _ in range(size):
            ids = np.concatenate([prompt, draw(int(random.integers(50, 2000)))])
            batch.append(MaskedTokens(ids, np.arange(len(ids)) >= 100))
    return batch


def test_thousands_of_sequences_are_planned_and_split_in_moments() -> None:
    # Comparing all units of all lines took 20 s for a plan and minutes for a split.
    batch = make_batch(256, 8)
    layouts: list[SequenceLayout] = [PrefixTreeLayout(32_768), PackedLayout(32_768)]
    for layout in layouts:
        start = time.process_time()
        plan = layout.plan(batch)
        assert time.process_time() - start < 2
        assert sorted(i for line in plan for i in line) == list(range(2048))
        start = time.process_time()
        assert len(split(layout, batch, ranks=8).passes) == 8
        assert time.process_time() - start < 10
