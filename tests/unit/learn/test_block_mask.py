"""Block masks, against those that PyTorch makes of every pair of places.

Mutants seen caught: a block whole by its last end; seen by its first end; the diagonal left out.
"""

from collections.abc import Sequence

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention.flex_attention import (
    create_block_mask,  # pyright: ignore[reportUnknownVariableType]
)

from agentrl.learn.block_mask import build_block_mask
from tests.support.memory import watch_memory


def ends_of(lengths: Sequence[int], shared: Sequence[float]) -> Tensor:
    """Return the ends of a line of sequences, each of which shares a part of the one before."""
    ends: list[int] = []
    path: list[int] = []
    for length, part in zip(lengths, shared, strict=True):
        kept = int(part * min(length - 1, len(path)))
        path = [*path[:kept], *range(len(ends), len(ends) + length - kept)]
        ends += [0] * (length - kept)
        for place in path:
            ends[place] = len(ends) - 1
    return torch.tensor(ends)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 400), st.floats(0, 1)), min_size=1, max_size=6))
def test_blocks_are_those_of_all_pairs(sequences: list[tuple[int, float]]) -> None:
    ends = ends_of([n for n, _ in sequences], [part for _, part in sequences])
    wanted = create_block_mask(
        lambda batch, head, query, key: (key <= query) & (query <= ends[key]),
        B=1,
        H=None,
        Q_LEN=len(ends),
        KV_LEN=len(ends),
        device="cpu",
    )
    found = build_block_mask(ends)
    assert found.shape == wanted.shape
    assert found.BLOCK_SIZE == wanted.BLOCK_SIZE
    for name in ("kv", "full_kv", "q", "full_q"):
        for part in ("num_blocks", "indices"):
            value, other = (getattr(mask, f"{name}_{part}") for mask in (found, wanted))
            assert torch.equal(value, other), f"{name}_{part}"


def test_a_long_line_takes_memory_for_its_blocks_only() -> None:
    # By pairs of places 10 bytes each, 10 GiB.
    ends = torch.full((32_768,), 32_767)
    build_block_mask(ends[:1024])
    with watch_memory() as peak:
        mask = build_block_mask(ends)
    assert peak.bytes < 16 * 2**20
    assert int(mask.full_kv_num_blocks.sum()) == 256 * 255 // 2  # pyright: ignore[reportOptionalMemberAccess]
