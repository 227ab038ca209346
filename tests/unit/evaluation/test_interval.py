"""Task-clustered intervals: golden numbers, properties, and the coverage they promise.

Seen caught: normal instead of Student quantile, population instead of sample variance, standard
deviation not divided by the number of tasks, samples instead of tasks as the unit, no limits on the
effective number, Wilson's centre left at the mean.
"""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from agentrl.evaluation.interval import IntervalEstimate, mean_estimate, rate_estimate
from benchmarks.intervals import covered, wilson

CONFIDENCE = 0.95


def ends(estimate: IntervalEstimate) -> tuple[float, float]:
    return estimate.low, estimate.high


def test_mean_golden() -> None:
    """Mean 2, sample variance 1, so the half-width is t(2) / sqrt(3)."""
    estimate = mean_estimate([1.0, 2.0, 3.0])
    assert (estimate.mean, estimate.tasks) == (2.0, 3)
    half = 4.302652729911275 / math.sqrt(3)
    assert ends(estimate) == pytest.approx((2 - half, 2 + half))


def test_a_mean_of_one_task_has_no_bounds() -> None:
    assert ends(mean_estimate([0.3])) == (-math.inf, math.inf)


def test_rate_golden_one_trial_per_task() -> None:
    """Wilson's interval of 8 of 10 with t(9) = 2.262157 for z.

    With w = t**2 / 10 = 0.511735: the centre is (0.8 + w / 2) / (1 + w) = 0.698447, the half-width
    sqrt(w * 0.16 + w**2 / 4) / (1 + w) = 0.253918.
    """
    estimate = rate_estimate([1.0] * 8 + [0.0] * 2, trials=[1] * 10)
    assert ends(estimate) == pytest.approx((0.444529, 0.952365), abs=2e-6)


def test_rate_golden_when_the_trials_of_a_task_always_agree() -> None:
    """Four samples per task that all agree tell no more than one."""
    alone = rate_estimate([1.0] * 8 + [0.0] * 2, trials=[1] * 10)
    agreeing = rate_estimate([1.0] * 8 + [0.0] * 2, trials=[4] * 10)
    assert ends(agreeing) == pytest.approx(ends(alone))


def test_rate_golden_when_tasks_are_all_alike() -> None:
    """Every task passes 2 of 4: no variance between tasks, so the 40 trials count nearly in full.

    Ten informative tasks against half a pseudo-task of effect 4: 40 * 10.5 / (10 * 1 + 0.5 * 4) =
    35 trials. w = 5.117355 / 35, half-width sqrt(w / 4 + w**2 / 4) / (1 + w).
    """
    estimate = rate_estimate([0.5] * 10, trials=[4] * 10)
    w = 5.117355 / 35
    half = math.sqrt(w / 4 + w * w / 4) / (1 + w)
    assert ends(estimate) == pytest.approx((0.5 - half, 0.5 + half), abs=1e-6)


@pytest.mark.parametrize("trials", [1, 8])
def test_all_or_nothing_over_200_tasks_still_has_a_width(trials: int) -> None:
    """With nothing seen, t**2 / (200 + t**2) = 0.019072, however many samples a task has."""
    nothing = rate_estimate([0.0] * 200, trials=[trials] * 200)
    assert ends(nothing) == pytest.approx((0, 0.019072), abs=1e-6)
    everything = rate_estimate([1.0] * 200, trials=[trials] * 200)
    assert ends(everything) == pytest.approx((1 - 0.019072, 1), abs=1e-6)


def test_a_rate_of_one_task_is_anything() -> None:
    assert ends(rate_estimate([1.0], trials=[5])) == (0, 1)


def test_values_that_are_no_shares_of_passes() -> None:
    """Equal values have no interval; at 0 and 1 they are passes after all."""
    assert ends(rate_estimate([0.5] * 5, trials=None)) == (0.5, 0.5)
    assert rate_estimate([1.0] * 5, trials=None) == rate_estimate([1.0] * 5, trials=[1] * 5)


def test_unequal_trials_count_as_their_harmonic_mean() -> None:
    """1 and 3 trials are worth 1.5 each for a mean in which both tasks weigh the same."""
    values = [0.5] * 12
    unequal = rate_estimate(values, trials=[1, 3] * 6)
    assert ends(unequal) == pytest.approx(ends(rate_estimate(values, trials=[1.5] * 12)))


@pytest.mark.parametrize("values", [[-0.1, 0.5], [0.5, 1.1]])
def test_a_rate_outside_0_and_1_is_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match="a rate must be within"):
        rate_estimate(values, trials=None)


def test_no_values_are_refused() -> None:
    with pytest.raises(ValueError, match="no task has a value"):
        mean_estimate([])
    with pytest.raises(ValueError, match="no task has a value"):
        rate_estimate([], trials=[])


counts = st.integers(1, 6).flatmap(
    lambda trials: st.lists(st.integers(0, trials), min_size=2, max_size=30).map(
        lambda passes: ([p / trials for p in passes], trials)
    )
)


@given(counts, st.floats(0.5, 0.99))
def test_a_rate_interval_holds_its_mean_and_stays_within_0_and_1(
    data: tuple[Sequence[float], int], confidence: float
) -> None:
    values, trials = data
    estimate = rate_estimate(values, trials=[trials] * len(values), confidence=confidence)
    assert 0 <= estimate.low <= estimate.mean <= estimate.high <= 1
    assert estimate.high - estimate.low > 0


@given(counts)
def test_a_rate_and_its_complement_mirror_each_other(data: tuple[Sequence[float], int]) -> None:
    values, trials = data
    one = rate_estimate(values, trials=[trials] * len(values))
    other = rate_estimate([1 - v for v in values], trials=[trials] * len(values))
    assert ends(one) == pytest.approx((1 - other.high, 1 - other.low), abs=1e-9)


@given(counts)
def test_more_confidence_is_a_wider_interval(data: tuple[Sequence[float], int]) -> None:
    values, trials = data
    assume(0 < sum(values) < len(values))
    narrow = rate_estimate(values, trials=[trials] * len(values), confidence=0.8)
    wide = rate_estimate(values, trials=[trials] * len(values), confidence=0.99)
    assert wide.low < narrow.low
    assert narrow.high < wide.high


@given(counts)
def test_copies_of_every_trajectory_add_nothing(data: tuple[Sequence[float], int]) -> None:
    """The task is the unit: an interval over trajectories would shrink by half."""
    values = [round(value) for value in data[0]]
    once = rate_estimate(values, trials=[1] * len(values))
    copied = rate_estimate(values, trials=[4] * len(values))
    assert ends(copied) == pytest.approx(ends(once), abs=1e-9)


@pytest.mark.parametrize("rate", [0.01, 0.03, 0.3, 0.5, 0.9, 0.97])
def test_95_percent_cover_95_percent_of_200_tasks_with_one_sample(rate: float) -> None:
    """The quickstart's case. Student's interval covers 86 % at a rate of 0.01."""
    rng = np.random.default_rng(1)
    share = covered(wilson, rng, tasks=200, samples=1, rate=rate, agreement=0, runs=10_000)
    assert 0.93 <= share <= 0.97


@pytest.mark.parametrize("agreement", [0, 0.3, 1])
@pytest.mark.parametrize("rate", [0.03, 0.5, 0.9])
def test_95_percent_cover_95_percent_of_200_tasks_with_four_samples(
    rate: float, agreement: float
) -> None:
    """A Wilson interval over the 800 trajectories covers 67 % at an agreement of 1."""
    rng = np.random.default_rng(2)
    share = covered(wilson, rng, tasks=200, samples=4, rate=rate, agreement=agreement, runs=1_000)
    assert 0.93 <= share <= 0.97
