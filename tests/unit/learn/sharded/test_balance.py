"""Which rank computes what. Golden tables, and what no split may do whatever it is given.

Mutants seen caught: passes sorted by rising cost; ties within a round by rank, not by work; no
lower limits tried; more rounds taken for a cheaper sum; the dearer of two splits kept.
"""

from dataclasses import dataclass, field
from itertools import chain, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import Bool, Int
from numpy import ndarray

from agentrl.learn.layouts.packed import PackedLayout, PrefixTreeLayout
from agentrl.learn.layouts.padded import PaddedLayout
from agentrl.learn.sequence_layout import SequenceLayout
from agentrl.learn.sharded.balance import rounds, split
from agentrl.message import ImageSpan


@dataclass(frozen=True, eq=False)
class Line:
    """A sequence whose last token trains."""

    token_ids: Int[ndarray, " tokens"]
    images: tuple[ImageSpan, ...] = field(default=())

    @property
    def mask(self) -> Bool[ndarray, " tokens"]:
        return np.arange(len(self.token_ids)) == len(self.token_ids) - 1


def lines(*lengths: int) -> list[Line]:
    """Return sequences that share nothing, each read so long."""
    return [Line(np.full(n + 1, 3 + i)) for i, n in enumerate(lengths)]


@pytest.mark.parametrize(
    ("costs", "ranks", "wanted"),
    [
        ([], 2, ()),
        ([5], 2, ((0, None),)),
        ([5, 9, 1, 7], 2, ((1, 3), (2, 0))),
        ([4, 4, 4], 3, ((0, 1, 2),)),
        ([10, 1, 1, 8], 3, ((0, 3, 1), (None, None, 2))),
        ([3, 2, 1], 1, ((0,), (1,), (2,))),
    ],
)
def test_rounds_golden(
    costs: list[int], ranks: int, wanted: tuple[tuple[int | None, ...], ...]
) -> None:
    assert rounds(costs, ranks=ranks) == wanted


def test_no_ranks_are_refused() -> None:
    with pytest.raises(ValueError, match="0 ranks"):
        rounds([1], ranks=0)


@given(costs=st.lists(st.integers(1, 20), min_size=1, max_size=6), ranks=st.integers(1, 3))
def test_no_other_rounds_are_faster(costs: list[int], ranks: int) -> None:
    def slowest(order: tuple[int, ...]) -> int:
        return sum(max(order[i : i + ranks]) for i in range(0, len(order), ranks))

    own = sum(max(costs[i] for i in row if i is not None) for row in rounds(costs, ranks=ranks))
    assert own == min(map(slowest, permutations(costs)))


LAYOUTS: list[SequenceLayout] = [PaddedLayout(32), PackedLayout(32), PrefixTreeLayout(32)]


@pytest.mark.parametrize("layout", LAYOUTS, ids=["padded", "packed", "tree"])
@given(
    rows=st.lists(st.lists(st.integers(2, 4), min_size=2, max_size=33), max_size=12),
    ranks=st.integers(1, 4),
)
def test_a_split_is_a_split(layout: SequenceLayout, rows: list[list[int]], ranks: int) -> None:
    sequences = [Line(np.array(row)) for row in rows]
    found = split(layout, sequences, ranks=ranks)
    assert len(found.passes) == ranks
    assert len({len(passes) for passes in found.passes}) == 1
    every = sorted(chain.from_iterable(chain.from_iterable(found.passes)))
    assert every == list(range(len(rows)))
    plan = layout.plan(sequences)
    assert len(found.passes[0]) <= -(-len(plan) // ranks)
    measured = layout.measure(sequences)
    costs = [measured.places(chosen) for chosen in plan]
    table = rounds(costs, ranks=ranks)
    assert found.tokens <= sum(max(costs[i] for i in row if i is not None) for row in table)
    for passes in found.passes:
        for chosen in passes:
            assert measured.places(chosen) <= 32


def test_what_fits_one_pass_is_split_all_the_same() -> None:
    found = split(PackedLayout(100), lines(10, 20, 10, 20), ranks=2)
    assert found.tokens == 30
    assert sorted(len(chosen) for (chosen,) in found.passes) == [2, 2]


def test_a_shared_prefix_is_computed_where_it_costs_least() -> None:
    prompt = [7] * 20
    rows = [Line(np.array([*prompt, i, i, i])) for i in range(4)]
    found = split(PrefixTreeLayout(64), rows, ranks=2)
    # 20 + 2 x 2 each; together they would be 28 on one of them.
    assert found.tokens == 24
    assert [len(chosen) for (chosen,) in found.passes] == [2, 2]


def test_one_rank_takes_the_layout_s_own_plan() -> None:
    layout = PackedLayout(16)
    sequences = lines(9, 3, 8, 7, 2)
    found = split(layout, sequences, ranks=1).passes[0]
    assert sorted(map(sorted, found)) == sorted(map(sorted, layout.plan(sequences)))
