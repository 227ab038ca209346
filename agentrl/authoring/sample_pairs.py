"""Endless small sums for examples."""

import random
from collections.abc import Iterator

from agentrl.runtime.seeds import derive
from agentrl.task import Split, split_of


def sample_pairs(
    split: Split, seed: int, *, low: int = 2, high: int = 99
) -> Iterator[tuple[int, int]]:
    """Yield endless pairs of integers between `low` and `high`, both included.

    A pair's own text decides its split, so no pair is in both whatever the seeds; pairs repeat.

    Args:
        split: Split whose pairs to yield.
        seed: Seed of the order.
        low: Smallest integer.
        high: Largest integer.
    """
    rng = random.Random(derive("pairs", split, seed))
    while True:
        pair = rng.randint(low, high), rng.randint(low, high)
        if split_of(f"{pair[0]},{pair[1]}") == split:
            yield pair
