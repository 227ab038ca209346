"""Decisions about what runs, runs again and stops the run.

Mutants seen caught: `<=` to `<` in check_failures; retries off by one; cancelled ones retried.
"""

import pytest

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


def test_the_error_names_the_most_frequent_cause_of_each_kind() -> None:
    outcomes = [Failed("tool", "disk"), Failed("tool", "net"), Failed("tool", "net")]
    with pytest.raises(TooManyFailures, match=r"3 x tool, mostly: net.*max_failed_fraction") as e:
        check_failures([*outcomes, Failed("env", "gone")], max_failed_fraction=0.5)
    assert "1 x env, mostly: gone" in str(e.value)


def test_no_failure_is_fine_even_when_none_is_allowed() -> None:
    check_failures([Finished(1.0)], max_failed_fraction=0.0)
    check_failures([], max_failed_fraction=0.0)
