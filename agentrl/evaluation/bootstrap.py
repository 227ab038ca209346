"""The bootstrap over tasks: intervals that assume nothing but that the tasks are a sample.

What is drawn again are whole tasks with all their trajectories, so what the trajectories of a task
have in common stays in the interval.
"""

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from agentrl.evaluation.interval import IntervalEstimate

RESAMPLES = 4000
"""An end of a 95 % interval then has a Monte Carlo error of 0.25 % of the distribution."""

_NORMAL = NormalDist()


def bootstrap_estimate(
    values: Sequence[float], *, confidence: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> IntervalEstimate:
    """Return the mean of one value per task with the BCa interval of the bootstrap over tasks.

    BCa is the percentile interval with its two corrections, for bias and for a spread that changes
    with the mean (Efron 1987, "Better Bootstrap Confidence Intervals"). The same values in any
    order and the same seed give the same interval. Equal values have an interval without width, and
    one value has none: unbounded. Raises `ValueError` without values.
    """
    if not values:
        raise ValueError("no task has a value, so there is no mean; check for values first")
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return IntervalEstimate(mean=mean, low=-math.inf, high=math.inf, tasks=1)
    means = np.sort(resample_means(values, resamples=resamples, seed=seed))
    low, high = (
        float(np.quantile(means, share))
        for share in _correct_shares(values, mean, means, confidence)
    )
    return IntervalEstimate(mean=mean, low=min(low, mean), high=max(high, mean), tasks=len(values))


def resample_means(values: Sequence[float], *, resamples: int, seed: int) -> "np.ndarray":
    """Return the means of `resamples` draws with replacement: counts of values, not each task."""
    different, counts = np.unique(np.asarray(values, dtype=float), return_counts=True)
    drawn = np.random.default_rng(seed).multinomial(len(values), counts / len(values), resamples)
    return drawn @ different / len(values)


def _correct_shares(
    values: Sequence[float], mean: float, found: "np.ndarray", confidence: float
) -> tuple[float, float]:
    """Return the shares of the bootstrap distribution at which the interval begins and ends."""
    away = np.asarray(values, dtype=float) - mean
    spread = float((away**2).sum())
    if spread <= 1e-18:
        return 0.5, 0.5
    # Ties with the mean are many where values are few; half of them lie below it.
    below = float((found < mean - 1e-12).mean() + (abs(found - mean) <= 1e-12).mean() / 2)
    bias = _NORMAL.inv_cdf(min(max(below, 0.5 / len(found)), 1 - 0.5 / len(found)))
    # Leaving task i out moves the mean by -away[i] / (n - 1): the jackknife of a mean.
    acceleration = float((away**3).sum()) / (6 * spread**1.5)

    def share(at: float) -> float:
        shifted = bias + _NORMAL.inv_cdf(at)
        return _NORMAL.cdf(bias + shifted / (1 - acceleration * shifted))

    tail = (1 - confidence) / 2
    return share(tail), share(1 - tail)
