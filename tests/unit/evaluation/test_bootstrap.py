"""The bootstrap over tasks: golden numbers, properties, and the coverage it promises.

Seen caught: no correction for bias, its sign turned round, the acceleration doubled and with the
wrong sign, ties counted as below.
"""

import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.evaluation.bootstrap import bootstrap_estimate, resample_means
from benchmarks.intervals import bootstrap, covered, pooled

SKEWED = [0.0] * 30 + [0.25] * 10 + [1.0] * 10
FEW = [0.6**i for i in range(12)]


@pytest.mark.parametrize("values", [SKEWED, FEW])
def test_golden_against_the_definition_of_bca(values: list[float]) -> None:
    """Counted out of the same resamples: z0 of the share below the mean, a of the skewness."""
    n = len(values)
    means = np.sort(resample_means(values, resamples=4000, seed=3))
    mean, normal = sum(values) / len(values), NormalDist()
    ties = sum(abs(m - mean) < 1e-12 for m in means)
    z0 = normal.inv_cdf((sum(m < mean - 1e-12 for m in means) + ties / 2) / 4000)
    jack = [(n * mean - value) / (n - 1) for value in values]
    up = sum((mean - one) ** 3 for one in jack)
    a = up / (6 * sum((mean - one) ** 2 for one in jack) ** 1.5)
    ends: list[float] = []
    for at in (0.05, 0.95):
        z = z0 + normal.inv_cdf(at)
        ends.append(float(np.quantile(means, normal.cdf(z0 + z / (1 - a * z)))))
    found = bootstrap_estimate(values, confidence=0.9, resamples=4000, seed=3)
    assert (found.low, found.high) == pytest.approx(ends)
    assert a > 0.03
    plain = np.quantile(means, [0.05, 0.95])
    assert found.low > plain[0], "skewness to the right moves both ends to the right"
    assert found.high > plain[1]


def test_order_does_not_matter_and_the_seed_does() -> None:
    one = bootstrap_estimate(SKEWED)
    assert bootstrap_estimate(SKEWED[::-1]) == one
    assert bootstrap_estimate(SKEWED, seed=1) != one


def test_degenerate_samples() -> None:
    alone = bootstrap_estimate([0.3])
    assert (alone.low, alone.high) == (-math.inf, math.inf)
    equal = bootstrap_estimate([0.1] * 7)
    assert (equal.low, equal.high) == pytest.approx((0.1, 0.1))
    with pytest.raises(ValueError, match="no task has a value"):
        bootstrap_estimate([])


@given(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=2, max_size=40))
def test_an_interval_holds_its_mean_and_stays_among_the_values(values: list[float]) -> None:
    found = bootstrap_estimate(values, resamples=200)
    assert min(values) - 1e-12 <= found.low <= found.mean <= found.high <= max(values) + 1e-12


@given(st.lists(st.floats(-3, 3), min_size=2, max_size=20), st.floats(-5, 5))
def test_adding_a_constant_moves_the_interval_along(values: list[float], by: float) -> None:
    one = bootstrap_estimate(values, resamples=200)
    moved = bootstrap_estimate([value + by for value in values], resamples=200)
    assert moved.mean == pytest.approx(one.mean + by, abs=1e-9)
    if len({*values}) == len({value + by for value in values}):
        assert moved.high - moved.low == pytest.approx(one.high - one.low, abs=1e-2)


@pytest.mark.parametrize("agreement", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(("tasks", "rate"), [(200, 0.5), (200, 0.9), (100, 0.3)])
def test_95_percent_cover_95_percent_of_clustered_passes(
    tasks: int, rate: float, agreement: float
) -> None:
    rng = np.random.default_rng(5)
    share = covered(
        bootstrap, rng, tasks=tasks, samples=4, rate=rate, agreement=agreement, runs=1000
    )
    assert 0.93 <= share <= 0.97


def test_over_trajectories_it_would_not() -> None:
    """What the clustering is for."""
    rng = np.random.default_rng(5)
    share = covered(pooled, rng, tasks=100, samples=4, rate=0.5, agreement=1, runs=300)
    assert share < 0.8
