"""The gate's pure decisions: golden numbers and properties.

Mutants seen caught, here and in test_gate_ledger.py and test_gate_runner.py:
capacity without its +1, or without what runs; ages, start lag and the version at which they are
looked at off by one; tokens nobody sampled trainable; over-provisioning ignored; queued ones not
counted against places; redundancy waited for; min_valid off by one; a branch with an age of its
own; a short batch not charged; a reopened group still ready; restarts unbounded; newest first;
all failures carried; an ended segment still counted as parked; ended ones not restarted, or never
looked at again; time at the gate counted, or a turn's time forgotten; no gate before a request; a
cut segment taken for the turn's end; the gate left open; surplus not stopped; rates not counted;
the engine not resumed; closing without waiting; one seed per group; windows that forget nothing;
no grace; router weights not returned, homes not kept; one segment too many; truncated as failed;
a branch queued behind what has not begun, still waiting after its end, kept when it is too old or
surplus, without its parent's age, with an attempt number twice; branches to come taking no room;
a backlog ignored, one batch short, blind to what is held, counting it as a batch, or let in where
nothing runs ahead; what comes next told in the heap's own order, twice, with what is no longer
queued, with branches that have a world already, or one too many.
"""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.engine.router import choose_engine, request_weight, session_of
from agentrl.rollout.scheduler.batch import RolloutLengthBias, age_histogram, trainable
from agentrl.rollout.scheduler.failure_limits import FailureRateLimits, OutcomeRates, RateAlarm
from agentrl.rollout.scheduler.member import failures_kept, judge
from agentrl.rollout.scheduler.policy import (
    SchedulerCounts,
    SchedulerPolicy,
    batch_is_ready,
    capacity,
    groups_to_open,
    next_segment_is_due,
    places_free,
)
from agentrl.rollout.scheduler.segments import SegmentBudget, SegmentUse, segment_verdict
from agentrl.rollout.scheduler.topology import GroupProgress, IndependentRollouts
from agentrl.rollout.scheduler.watchdog import SlotActivity, name_all, overdue
from agentrl.trajectory import Failed, Finished
from tests.support.rooted_topology import RootedTopology

# --- admission ------------------------------------------------------------------------------------


def test_capacity_is_areals() -> None:
    """B=4, eta=1: 8 starts at version 0, 4 more at version 1, and what is rejected is refilled."""
    assert capacity(version=0, max_staleness=1, batch=4, accepted=0, running=0) == 8
    assert capacity(version=0, max_staleness=1, batch=4, accepted=3, running=5) == 0
    assert capacity(version=1, max_staleness=1, batch=4, accepted=8, running=0) == 4
    assert capacity(version=1, max_staleness=1, batch=4, accepted=6, running=4) == 2


@given(st.integers(0, 50), st.integers(0, 8), st.integers(1, 64))
def test_what_is_started_is_consumed_in_time_when_consumed_in_order(
    version: int, staleness: int, batch: int
) -> None:
    """The last one admitted at a version, counted from 0, is in the batch of version + eta."""
    last = (
        capacity(version=version, max_staleness=staleness, batch=batch, accepted=0, running=0) - 1
    )
    assert last // batch == version + staleness


def state(**changes: int | bool) -> SchedulerCounts:
    counts: dict[str, int | bool] = {
        "version": 0,
        "waiting": True,
        "open": 0,
        "ready": 0,
        "accepted": 0,
        "queued": 0,
        "live": 0,
        "parked": 0,
    }
    return SchedulerCounts(**(counts | changes))  # pyright: ignore[reportArgumentType]


SYNC = SchedulerPolicy(groups_per_step=4, group_size=2, concurrency=16)
PARTIAL = SchedulerPolicy(
    mode="partial", groups_per_step=4, group_size=2, concurrency=16, over_provision=2.0
)
ASYNC = SchedulerPolicy(mode="async", groups_per_step=4, group_size=2, concurrency=16)


def test_sync_opens_a_step_and_waits_for_all_of_it() -> None:
    assert groups_to_open(state(), SYNC) == 4
    assert groups_to_open(state(open=3, ready=1), SYNC) == 0
    assert groups_to_open(state(open=2, ready=1), SYNC) == 1  # one was dropped
    assert groups_to_open(state(waiting=False), SYNC) == 0
    assert not batch_is_ready(state(open=1, ready=3), SYNC)
    assert batch_is_ready(state(open=0, ready=4), SYNC)
    assert not batch_is_ready(state(open=0, ready=4, waiting=False), SYNC)


def test_partial_over_provisions_and_takes_the_first_groups() -> None:
    assert groups_to_open(state(), PARTIAL) == 8
    assert groups_to_open(state(open=4, ready=1), PARTIAL) == 3
    assert not batch_is_ready(state(open=5, ready=3), PARTIAL)
    assert batch_is_ready(state(open=4, ready=4), PARTIAL)


def test_async_admits_by_capacity_and_by_places_and_does_not_wait_for_the_trainer() -> None:
    assert groups_to_open(state(waiting=False), ASYNC) == 8
    assert groups_to_open(state(waiting=False, open=6, accepted=2), ASYNC) == 0
    assert groups_to_open(state(version=1, open=2, accepted=6), ASYNC) == 4
    assert groups_to_open(state(version=1, open=2, accepted=6, live=11), ASYNC) == 3
    assert groups_to_open(state(version=1, open=2, accepted=6, live=11, queued=5), ASYNC) == 0
    branching = state(version=1, open=2, accepted=6, live=4, queued=1, to_come=6)
    assert groups_to_open(branching, ASYNC) == 3


def test_a_backlog_waits_behind_what_is_handed_over() -> None:
    policy = SchedulerPolicy(
        mode="async", groups_per_step=4, group_size=2, concurrency=64, max_staleness=3, backlog=2
    )
    assert not batch_is_ready(state(ready=11), policy)
    assert batch_is_ready(state(ready=12), policy)
    assert not batch_is_ready(state(ready=12, waiting=False), policy)
    # What a killed run left for later versions is behind, too; a batch is whole all the same.
    assert not batch_is_ready(state(ready=8, held=3), policy)
    assert batch_is_ready(state(ready=8, held=4), policy)
    assert not batch_is_ready(state(ready=3, held=20), policy)
    assert batch_is_ready(state(ready=4, held=20), policy)
    assert batch_is_ready(state(ready=1, dry=True), policy)


def test_places_are_bounded_by_concurrency() -> None:
    assert places_free(state(queued=5, live=14), SYNC) == 2
    assert places_free(state(queued=1, live=14), SYNC) == 1
    assert places_free(state(queued=5, live=20), SYNC) == 0


def test_when_every_trajectory_is_parked_the_step_ends_with_what_there_is() -> None:
    parked = {"open": 8, "queued": 0, "live": 9, "parked": 9}
    assert batch_is_ready(state(**parked | {"open": 7, "ready": 1}), PARTIAL)
    assert not batch_is_ready(state(**parked | {"open": 7, "ready": 1, "parked": 8}), PARTIAL)
    assert next_segment_is_due(state(**parked), PARTIAL)
    assert not next_segment_is_due(state(**parked | {"parked": 8}), PARTIAL)
    assert not next_segment_is_due(state(**parked | {"queued": 1}), PARTIAL)
    assert next_segment_is_due(state(open=1, ready=3, live=2, parked=2), SYNC)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"over_provision": 0.5}, "over_provision must be at least 1, got 0.5"),
        ({"group_size": 0}, "group_size must be at least 1, got 0"),
        ({"min_valid": 3}, "min_valid=3"),
        ({"max_age": -1}, "max_age must be at least 0"),
        ({"backlog": -1}, "backlog must be at least 0, got -1"),
        ({"mode": "async", "max_staleness": 2, "backlog": 3}, "backlog=3 exceeds the"),
        ({"mode": "partial", "max_staleness": 2, "backlog": 1}, "backlog=1 exceeds the 0"),
    ],
)
def test_a_policy_that_cannot_be_is_refused(changes: dict[str, float | str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        SchedulerPolicy(**({"groups_per_step": 4, "group_size": 2} | changes))  # pyright: ignore


# --- age ------------------------------------------------------------------------------------------


def test_the_start_bound_is_rollarts() -> None:
    """Alpha 1: begun at version 3 it is evicted at 5 and kept at 4."""
    policy = SchedulerPolicy(groups_per_step=1, group_size=1, max_start_lag=1)
    assert policy.is_too_old(5, born=3, oldest=None)
    assert not policy.is_too_old(4, born=3, oldest=3)
    assert policy.looks_again_at(born=3, oldest=4) == 5


def test_the_start_bound_looks_at_the_start_and_not_at_the_tokens() -> None:
    """Begun at 3: its first token is of 4, or it is a branch with tokens of 1.

    Mutant: start lag compares the oldest token's version.
    """
    policy = SchedulerPolicy(groups_per_step=1, group_size=1, max_start_lag=1)
    for oldest in (None, 1, 3, 4, 5):
        assert policy.is_too_old(5, born=3, oldest=oldest)
        assert not policy.is_too_old(4, born=3, oldest=oldest)


def test_the_age_bound_restarts_only_where_it_does_not_mask() -> None:
    bound = {"groups_per_step": 1, "group_size": 1, "max_age": 2}
    masks, restarts = SchedulerPolicy(**bound), SchedulerPolicy(**bound, when_old="restart")  # pyright: ignore
    assert not masks.is_too_old(9, born=0, oldest=0)
    assert masks.looks_again_at(born=0, oldest=0) is None
    assert restarts.is_too_old(4, born=0, oldest=1)
    assert not restarts.is_too_old(4, born=0, oldest=2)
    assert not restarts.is_too_old(4, born=0, oldest=None)


def test_tokens_beyond_their_age_do_not_train_and_fresh_ones_of_the_same_run_do() -> None:
    versions = np.array([-1, 0, 0, 1, -1, 2, 3])
    assert trainable(versions, version=3, max_age=1).tolist() == [False] * 5 + [True] * 2
    assert trainable(versions, version=3, max_age=None).tolist() == (versions >= 0).tolist()
    assert trainable(versions, version=3, max_age=0).tolist() == [False] * 6 + [True]
    assert trainable(versions, version=3, max_age=9).tolist() == (versions >= 0).tolist()
    assert age_histogram([versions.tolist(), (3, 3)], version=3) == {0: 3, 1: 1, 2: 1, 3: 2}


# --- groups ---------------------------------------------------------------------------------------


def group(**changes: int) -> GroupProgress:
    return GroupProgress(**({"number": 0, "target": 4, "started": 6} | changes))


def test_a_group_is_ready_with_its_target_or_when_nothing_is_left() -> None:
    assert judge(group(valid=3, live=3), min_valid=1) == "open"
    assert judge(group(valid=4, live=2), min_valid=1) == "ready"
    assert judge(group(valid=3, failed=3), min_valid=1) == "ready"
    assert judge(group(failed=6), min_valid=1) == "short"
    assert judge(group(failed=6), min_valid=0) == "ready"
    assert failures_kept(group(valid=3, failed=3)) == 1
    assert failures_kept(group(valid=4, failed=2)) == 0


def test_topologies_say_what_is_missing() -> None:
    fresh = group(started=0)
    assert IndependentRollouts(redundancy=2).count_missing(fresh) == 6
    assert IndependentRollouts().count_missing(group(started=4, live=1)) == 0
    assert RootedTopology(roots=2).count_missing(fresh) == 2
    assert RootedTopology(roots=2).count_missing(group(started=2, live=1, valid=1)) == 0
    assert RootedTopology(roots=2).count_missing(group(started=2, valid=1, failed=1)) == 2


def test_redundancy_reports_the_lengths_it_prefers() -> None:
    bias = RolloutLengthBias()
    assert bias.figures() == {}
    for tokens in (10, 20):
        bias.keep(tokens)
    bias.abort(90)
    assert bias.figures() == {
        "redundancy/aborted_fraction": 1 / 3,
        "redundancy/kept_tokens_mean": 15.0,
        "redundancy/aborted_tokens_mean": 90.0,
    }


# --- segments -------------------------------------------------------------------------------------


def test_a_segment_ends_at_its_tokens_or_its_turns_and_the_last_one_truncates() -> None:
    budget = SegmentBudget(tokens=10, turns=2, segments=2)
    use = SegmentUse()
    assert segment_verdict(use, budget) == "goes_on"
    assert segment_verdict(use.add(tokens=9, turns=1), budget) == "goes_on"
    assert segment_verdict(use.add(tokens=10, turns=0), budget) == "waits"
    assert segment_verdict(use.add(tokens=0, turns=2), budget) == "waits"
    assert segment_verdict(use.next().add(tokens=10, turns=0), budget) == "truncated"


# --- alarms and the watchdog ----------------------------------------------------------------------


def test_a_rate_above_its_threshold_stops_the_run_with_its_name() -> None:
    rates = OutcomeRates(FailureRateLimits(window=10, min_count=5, thresholds={"tool": 0.2}))
    for _ in range(4):
        rates.add(Failed("env", "not judged"))
    rates.add(Failed("tool", "net"))
    assert rates.rates() == {"env": 0.8, "tool": 0.2}
    with pytest.raises(
        RateAlarm, match=r"2 of the latest 6 attempts \(33.3%\) .*rollout\.alarms\.tool.*20.0%"
    ):
        rates.add(Failed("tool", "net"))


def test_few_attempts_and_old_ones_are_not_judged() -> None:
    rates = OutcomeRates(FailureRateLimits(window=4, min_count=4, thresholds={"env": 0.5}))
    for _ in range(3):
        rates.add(Failed("env", "early"))
    with pytest.raises(RateAlarm):
        rates.add(Finished(1.0))
    for _ in range(3):
        with_pytest_tolerated(rates)
    assert rates.rates() == {}


def with_pytest_tolerated(rates: OutcomeRates) -> None:
    try:
        rates.add(Finished(1.0))
    except RateAlarm:
        return


def doing(phase: str, since_s: float, sample: int = 0) -> SlotActivity:
    return SlotActivity(task="t", group=1, sample=sample, phase=phase, since_s=since_s)  # pyright: ignore


def test_the_watchdog_names_what_is_past_its_own_deadline() -> None:
    acts = [doing("step", 0, 1), doing("step", 60, 2), doing("gate", 0, 3), doing("reset", 20, 4)]
    late = overdue(acts, now_s=100, deadlines_s={"step": 50, "reset": 50}, grace_s=10)
    assert [activity.sample for activity in late] == [1, 4]
    assert late[0].describe(100) == "trajectory 1 of group 1 (task t): step for 100 s"
    assert name_all(acts, now_s=100, most=1).endswith("step for 100 s; and 3 more")
    assert name_all([], now_s=0) == "no trajectory is live"


# --- routing --------------------------------------------------------------------------------------


def test_weights_are_agentmaths() -> None:
    assert [request_weight(n) for n in (0, 3000, 4096, 10_000)] == [1, 1, 2, 3]


def test_the_least_loaded_engine_is_chosen() -> None:
    loads = [0, 0]
    for weight in (3, 1, 1, 1):
        index = choose_engine(loads, among=(0, 1), weight=weight, home=None, cached=0.0, slack=0.0)
        loads[index] += weight
    assert loads == [3, 3]


def test_home_is_kept_until_it_is_busier_than_its_cache_is_worth() -> None:
    def chosen(load: float, cached: float, among: Sequence[int] = (0, 1)) -> int:
        return choose_engine([load, 2], among=among, weight=2, home=0, cached=cached, slack=1.0)

    assert chosen(5, 1.0) == 0
    assert chosen(5.1, 1.0) == 1
    assert chosen(5, 0.5) == 1
    assert chosen(0, 1.0, among=(1,)) == 1


def test_a_session_is_a_trajectory() -> None:
    assert session_of("a/b/7/1/3/20") == "a/b/7/1"
