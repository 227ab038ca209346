"""Age of sampled tokens when they train, and the bound on it."""

from collections import Counter
from collections.abc import Iterable, Sequence

NOT_SAMPLED = -1
"""The version of a token that the policy did not sample."""


def trainable(versions: Sequence[int], *, version: int, max_age: int | None) -> tuple[bool, ...]:
    """Return per token whether it may train at `version`: sampled, and not older than `max_age`.

    A token's age is the versions between the weights that sampled it and those it would train.
    """
    return tuple(v != NOT_SAMPLED and (max_age is None or version - v <= max_age) for v in versions)


def age_histogram(versions: Iterable[Sequence[int]], *, version: int) -> dict[int, int]:
    """Return the number of sampled tokens of each age, youngest first."""
    ages = Counter(version - v for run in versions for v in run if v != NOT_SAMPLED)
    return dict(sorted(ages.items()))
