"""An object of the first rank on all of them, its arrays as one tensor.

Mutants seen caught: the rest after the first bucket left out; arrays that may be written into.
"""

from collections.abc import Iterator

import numpy as np
import pytest

from agentrl.learn.sharded import packed_object
from agentrl.learn.sharded.mesh import MeshRanks
from tests.support.sharded import World, world


@pytest.fixture(scope="module")
def ranks() -> Iterator[World]:
    with world() as opened:
        yield opened


def made() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    sizes = (0, 1, 63, 64, 65, 1000)
    return {f"array {n}": random.integers(0, 2**31, n, dtype=np.int32) for n in sizes}


def broadcast(ranks: MeshRanks, bucket_bytes: int) -> list[tuple[str, bytes, bool]]:
    """Return the arrays that a rank has, and whether they may be written into."""
    packed_object.BUCKET_BYTES = bucket_bytes
    found = ranks.broadcast(made() if ranks.rank == 0 else None)
    assert ranks.broadcast("no arrays" if ranks.rank == 0 else None) == "no arrays"
    return [(name, each.tobytes(), each.flags.writeable) for name, each in found.items()]


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("bucket_bytes", [100, pytest.param(2**20, marks=pytest.mark.nightly)])
def test_every_rank_has_the_first_ones_object(ranks: World, size: int, bucket_bytes: int) -> None:
    first, *others = ranks.run(broadcast, bucket_bytes, size=size)
    wanted = [(name, each.tobytes()) for name, each in made().items()]
    assert [(name, data) for name, data, _ in first] == wanted
    for other in others:
        assert other == [(name, data, False) for name, data in wanted]
