"""DARS: a second phase of trajectories for tasks that the first found hard.

Source: arXiv 2508.13755 and its code.
"""

import math
from typing import Literal

HAIR = 1e-9
"""Keeps a quotient that is whole on paper from being rounded up by its last bit."""

Form = Literal["equal", "hardness"]


def mass(success_rate: float, *, normalise_std: bool) -> float:
    """Return the cumulated advantage of one trajectory in a group of this success rate."""
    product = success_rate * (1 - success_rate)
    return 2 * math.sqrt(product) if normalise_std else 2 * product


def extra(
    success_rate: float,
    *,
    size: int,
    base: int,
    limit: int,
    form: Form,
    normalise_std: bool = False,
) -> int:
    """Return the number of trajectories that a second phase adds to a group.

    `size` of them count so far, `base` is what the first phase asks for, and base + extra is at
    most `limit`. `equal` lifts every hard task to the mass of one that succeeds half of the time,
    `hardness` beyond it in proportion to the failures.
    """
    if success_rate >= 0.5 or not size:
        return 0
    rate = success_rate or 0.5 / size
    each = mass(rate, normalise_std=normalise_std)
    goal = base * mass(0.5, normalise_std=normalise_std)
    if form == "hardness":
        goal *= 2 * (1 - rate)
    lacking, room = goal - size * each, limit - base
    if lacking >= room * each:
        return max(0, room)
    return max(0, min(math.ceil(lacking / each - HAIR), room))
