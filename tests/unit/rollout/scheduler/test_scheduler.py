"""Decisions about what runs, runs again and stops the run.

Mutants seen caught: `<=` to `<` in check_failures; retries off by one; cancelled ones retried; a
share that no float holds taken for less.
"""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentrl.rollout.scheduler.failure_limits import FailureRateLimits, find_exceeded
from agentrl.rollout.scheduler.topology import (
    RolloutKey,
    TooManyFailures,
    check_failures,
    tries_again,
)
from agentrl.trajectory import Failed, Finished, Outcome, Truncated


@pytest.mark.parametrize(
    ("outcome", "number", "again"),
    [
        (Failed("tool", "x"), 0, True),
        (Failed("tool", "x"), 1, True),
        (Failed("tool", "x"), 2, False),
        (Failed("cancelled", "x"), 0, False),
        (Finished(0.0), 0, False),
        (Truncated("turns", 0.0), 0, False),
    ],
)
def test_only_failures_are_tried_again(outcome: Outcome, number: int, again: bool) -> None:
    assert tries_again(outcome, RolloutKey(group=0, sample=0, number=number), retries=2) is again


def test_failures_up_to_the_bound_are_tolerated() -> None:
    outcomes: list[Outcome] = [Failed("env", "x"), *[Finished(0.0)] * 4]
    check_failures(outcomes, max_failed_fraction=0.2)
    with pytest.raises(TooManyFailures, match="1 of 5"):
        check_failures(outcomes, max_failed_fraction=0.19)


@example(total=100, percent=29)
@given(total=st.integers(1, 1000), percent=st.integers(0, 99))
def test_exactly_the_tolerated_share_is_tolerated(total: int, percent: int) -> None:
    """However the share is rounded as a number: 29 of 100 with 0.29, say."""
    failures = total * percent // 100
    outcomes: list[Outcome] = [Failed("env", "x")] * failures
    outcomes += [Finished(0.0)] * (total - failures)
    bound = percent / 100
    limits = FailureRateLimits(window=total, min_count=1, thresholds={"env": bound})
    check_failures(outcomes, max_failed_fraction=bound)
    assert find_exceeded({"env": failures}, total, limits) is None
    with pytest.raises(TooManyFailures):
        check_failures([Failed("env", "x"), *outcomes[:-1]], max_failed_fraction=bound)
    assert find_exceeded({"env": failures + 1}, total, limits) == "env"


def test_the_error_names_the_most_frequent_cause_of_each_kind() -> None:
    outcomes = [Failed("tool", "disk"), Failed("tool", "net"), Failed("tool", "net")]
    with pytest.raises(TooManyFailures, match=r"3 x tool, mostly: net.*max_failed_fraction") as e:
        check_failures([*outcomes, Failed("env", "gone")], max_failed_fraction=0.5)
    assert "1 x env, mostly: gone" in str(e.value)


def test_no_failure_is_fine_even_when_none_is_allowed() -> None:
    check_failures([Finished(1.0)], max_failed_fraction=0.0)
    check_failures([], max_failed_fraction=0.0)
