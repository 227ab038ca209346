"""Quantiles of Student's t distribution."""

import math
from functools import cache


@cache
def two_sided_t(confidence: float, degrees: int) -> float:
    """Return t such that a Student variable is within [-t, t] with probability `confidence`.

    Exact for whole degrees of freedom, by bisection of the finite series of the distribution
    (Abramowitz and Stegun 26.7.3 and 26.7.4), to 12 digits.
    """
    if degrees < 1 or not 0 < confidence < 1:
        raise ValueError(
            f"confidence {confidence} must be within (0, 1), and degrees {degrees} at least 1"
        )
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        if _compute_coverage(middle, degrees) < confidence:
            low = middle
        else:
            high = middle
    return math.sqrt(degrees) * math.tan((low + high) / 2)


def _compute_coverage(angle: float, degrees: int) -> float:
    """Return P(|T| < t) for t = sqrt(degrees) * tan(angle)."""
    odd = degrees % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for j in range(3 if odd else 2, degrees + 1, 2):
        total += term
        term *= math.cos(angle) ** 2 * (j - 1) / j
    if odd:
        return 2 / math.pi * (angle + math.sin(angle) * total)
    return math.sin(angle) * total
