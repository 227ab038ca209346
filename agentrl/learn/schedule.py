"""Values that change over a run, as functions of how far it is. Nothing here has a state, so a run
that is resumed goes on where it was."""

import math
from typing import Literal

Shape = Literal["constant", "linear", "cosine"]
"""Course of a value from its first to its last: not at all, evenly, or by half a cosine wave."""


def warmup(update: int, *, steps: int) -> float:
    """Return the share of the full value at the `update`-th update, counted from 1."""
    return min(1.0, update / steps) if steps else 1.0


def interpolate(first: float, last: float, *, shape: Shape, step: int, steps: int) -> float:
    """Return the value at `step`, counted from 0, of one that is `first` there.

    It would be `last` at `steps`, where no step is taken any more, and stays there. A schedule of
    no steps is at its end.
    """
    progress = min(1.0, step / steps) if steps > 0 else 1.0
    match shape:
        case "constant":
            return first
        case "linear":
            return first + (last - first) * progress
        case "cosine":
            return last + (first - last) * (1 + math.cos(math.pi * progress)) / 2
