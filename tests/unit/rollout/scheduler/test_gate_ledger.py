"""The ledger under random orders of events.

The mutants it catches are listed in test_gate.py.
"""

from collections import Counter
from heapq import heapify
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.rollout.scheduler.member import QueuedGroup, QueuedRollout, too_old
from agentrl.rollout.scheduler.policy import SchedulerPolicy
from agentrl.rollout.scheduler.queue import RolloutQueue, iterate_heap
from agentrl.rollout.scheduler.topology import (
    IndependentRollouts,
    RolloutKey,
    RolloutTopology,
)
from agentrl.trajectory import Failed, Finished, Leaf
from tests.support.rooted_topology import RootedTopology


@st.composite
def policies(draw: st.DrawFn) -> SchedulerPolicy:
    size = draw(st.integers(1, 4))
    mode = draw(st.sampled_from(("sync", "partial", "async")))
    staleness = draw(st.integers(0, 3))
    max_start_lag, max_age = (
        draw(st.none() | st.integers(0, 3)),
        draw(st.none() | st.integers(0, 3)),
    )
    when_old = draw(st.sampled_from(("mask", "restart")))
    bounds = [staleness, max_start_lag, max_age if when_old == "restart" else None]
    ahead = min(bound for bound in bounds if bound is not None)
    return SchedulerPolicy(
        mode=mode,
        groups_per_step=draw(st.integers(1, 4)),
        group_size=size,
        concurrency=draw(st.integers(1, 12)),
        over_provision=draw(st.sampled_from((1.0, 1.5, 3.0))),
        max_staleness=staleness,
        backlog=draw(st.integers(0, ahead if mode == "async" else 0)),
        max_start_lag=max_start_lag,
        max_age=max_age,
        when_old=when_old,
        max_restarts=draw(st.integers(0, 2)),
        retries=draw(st.integers(0, 2)),
        min_valid=draw(st.integers(0, size)),
        requeues=draw(st.integers(0, 1)),
    )


class Driver:
    """Plays a runner without coroutines: ends, restarts and stops are events of its own."""

    def __init__(self, policy: SchedulerPolicy, topology: RolloutTopology, random: Random) -> None:
        self.ledger = RolloutQueue(policy, topology=topology)
        self.policy = policy
        self.random = random
        self.live: list[QueuedRollout] = []
        self.waiting: list[QueuedRollout] = []
        self.version = 0
        self.requeued: list[int] = []
        self.taken: list[QueuedGroup] = []
        self.opened = self.dropped = 0
        self.ledger.wait_for_batch()
        self.pump()

    def pump(self) -> None:
        while count := self.ledger.groups_to_open():
            again = [self.requeued.pop() for _ in range(min(count, len(self.requeued)))]
            self.opened += count - len(again)
            self.ledger.open_groups([*again, *[0] * (count - len(again))])
        to_come = self.ledger.upcoming(10**6)
        while (member := self.ledger.start_next()) is not None:
            if member not in self.waiting:
                # What was said to come next is what comes next.
                assert to_come.pop(0) == member.group
            if member in self.waiting:
                self.waiting.remove(member)
            self.live.append(member)
        self.check()

    def check(self) -> None:
        state = self.ledger.state
        phases = Counter(m.phase for group in self.ledger.groups for m in group.members)
        assert state.live == phases["live"] + phases["parked"] == len(self.live)
        assert state.queued == phases["queued"]
        to_come = self.ledger.upcoming(10**6)
        assert len(to_come) == phases["queued"] - len(self.waiting)
        assert self.ledger.upcoming(2) == to_come[:2]
        assert {*self.waiting} == {
            m for group in self.ledger.groups for m in group.members if m.waits
        }
        assert not self.waiting or state.live >= self.policy.concurrency
        assert state.ready == sum(group.is_ready for group in self.ledger.groups)
        assert state.open == sum(not group.is_ready for group in self.ledger.groups)
        for group in self.ledger.groups:
            own = Counter(m.phase for m in group.members)
            assert group.state.live == own["queued"] + own["live"] + own["parked"]
            assert group.state.started == len(group.members)
            kinds = Counter(
                isinstance(m.leaf.outcome, Failed) for m in group.members if m.leaf is not None
            )
            assert (group.state.valid, group.state.failed) == (kinds[False], kinds[True])
        assert state.live <= self.policy.concurrency

    def fork(self, parent: QueuedRollout) -> QueuedRollout:
        branch = self.ledger.fork(parent)
        self.waiting.append(branch)
        self.pump()
        return branch

    def forget(self, member: QueuedRollout) -> None:
        (self.waiting if member in self.waiting else self.live).remove(member)

    def end(self, member: QueuedRollout, *, fails: bool) -> None:
        outcome = Failed("env", "x") if fails else Finished(1.0)
        self.settle(member, Leaf(node=None, outcome=outcome, sample=member.sample))

    def settle(self, member: QueuedRollout, leaf: Leaf) -> None:
        self.forget(member)
        end = self.ledger.end_rollout(member, leaf)
        for other in end.surplus:
            self.forget(other)
        group = self.ledger.group(member.group)
        if not end.again and end.group != "open":
            assert group is not None
            if end.group == "ready":
                self.ledger.accept(group)
            elif self.ledger.drop(group, requeue=True):
                self.requeued.append(group.requeues + 1)
            else:
                self.dropped += 1
        self.pump()

    def batch(self) -> bool:
        if not self.ledger.batch_is_ready():
            return False
        for group in self.ledger.take():
            self.check_taken(group)
            self.taken.append(group)
        self.publish()
        self.ledger.wait_for_batch()
        self.pump()
        return True

    def check_taken(self, group: QueuedGroup) -> None:
        leaves = group.leaves
        samples = [leaf.sample for leaf in leaves]
        assert len(samples) == len({*samples})
        assert len(leaves) == self.policy.group_size
        assert group.state.valid >= self.policy.min_valid
        for member in group.members:
            if member.leaf is not None and isinstance(member.leaf.outcome, Finished):
                born, oldest = member.born, member.oldest
                assert not self.policy.is_too_old(self.version, born=born, oldest=oldest)

    def publish(self) -> None:
        self.version += 1
        for member in self.ledger.publish(self.version):
            if self.ledger.restart(member):
                self.forget(member)
            else:
                self.settle(member, Leaf(node=None, outcome=too_old(member), sample=member.sample))

    def random_event(self) -> None:
        if not self.live or self.random.random() < 0.2:
            self.batch()
            return
        member = self.random.choice(self.live)
        group = self.ledger.group(member.group)
        assert group is not None
        if group.state.started < group.state.target and self.random.random() < 0.5:
            self.fork(member)
        elif self.random.random() < 0.3:
            self.ledger.note_version(member, self.version)
        elif self.waiting and self.random.random() < 0.1:
            # Somebody cancels it before it has its place.
            self.end(self.random.choice(self.waiting), fails=True)
        else:
            self.end(member, fails=self.random.random() < 0.3)


@settings(max_examples=400)
@given(policies(), st.integers(0, 2**32), st.sampled_from(("chains", "spare", "rooted")))
def test_any_order_of_events_keeps_the_books(policy: SchedulerPolicy, seed: int, kind: str) -> None:
    topologies: dict[str, RolloutTopology] = {
        "chains": IndependentRollouts(),
        "spare": IndependentRollouts(redundancy=2),
        "rooted": RootedTopology(roots=2),
    }
    driver = Driver(policy, topologies[kind], Random(seed))
    for _ in range(60):
        driver.random_event()
    assert driver.opened - driver.dropped >= len(driver.taken)


@settings(max_examples=300)
@given(
    policies(),
    st.integers(0, 2**32),
    st.sampled_from((IndependentRollouts(), RootedTopology(roots=1))),
)
def test_nothing_starves(policy: SchedulerPolicy, seed: int, topology: RolloutTopology) -> None:
    """From any point on, when trajectories end, every group that was open is soon trained."""
    driver = Driver(policy, topology, Random(seed))
    for _ in range(30):
        driver.random_event()
    old = {group.state.number for group in driver.ledger.groups}
    seen = len(driver.taken)
    rounds = 0
    while old & {group.state.number for group in driver.ledger.groups}:
        rounds += 1
        assert rounds < 2 * len(old) + 10
        while not driver.batch():
            assert driver.live, "nothing runs and no batch comes"
            driver.end(driver.live[0], fails=False)
    assert len(driver.taken) > seen


def test_the_oldest_version_is_of_any_token_that_was_not_taken() -> None:
    policy = SchedulerPolicy(
        mode="async", groups_per_step=1, group_size=1, max_staleness=3, concurrency=9
    )
    driver = Driver(policy, IndependentRollouts(), Random(0))
    first, second, third = driver.live[:3]
    assert driver.ledger.oldest == 0
    for member, version in ((second, 0), (third, 1), (first, 0)):
        driver.ledger.note_version(member, version)
    driver.end(first, fails=False)
    assert driver.batch()
    assert (driver.version, driver.ledger.oldest) == (1, 0)
    driver.end(second, fails=False)
    assert driver.ledger.oldest == 0  # it has ended, and was not taken
    assert driver.batch()
    assert (driver.version, driver.ledger.oldest) == (2, 1)
    driver.end(third, fails=False)
    assert driver.batch()
    assert (driver.version, driver.ledger.oldest) == (3, 3)  # the others have sampled nothing yet


def test_the_oldest_groups_are_taken_first_and_surplus_waits() -> None:
    policy = SchedulerPolicy(
        mode="partial", groups_per_step=2, group_size=1, over_provision=2, concurrency=9
    )
    driver = Driver(policy, IndependentRollouts(), Random(0))
    for number in (3, 0, 2):
        driver.end(next(m for m in driver.live if m.group == number), fails=False)
    assert [group.state.number for group in driver.ledger.take()] == [0, 2]
    assert driver.ledger.state.ready == 1


def test_an_all_fault_group_is_tried_again_and_then_dropped() -> None:
    policy = SchedulerPolicy(groups_per_step=1, group_size=2, min_valid=1, retries=0, requeues=1)
    driver = Driver(policy, IndependentRollouts(), Random(0))
    for _ in range(2):
        driver.end(driver.live[0], fails=True)
    assert (driver.ledger.requeued, driver.ledger.dropped, driver.opened) == (1, 0, 1)
    for _ in range(2):
        driver.end(driver.live[0], fails=True)
    assert (driver.ledger.requeued, driver.ledger.dropped, driver.opened) == (1, 1, 2)


def test_what_is_too_old_begins_again_until_it_has_had_its_chances() -> None:
    policy = SchedulerPolicy(
        mode="partial", groups_per_step=1, group_size=1, over_provision=2, max_start_lag=0,
        max_restarts=1,
    )  # fmt: skip
    driver = Driver(policy, IndependentRollouts(), Random(0))
    slow = next(m for m in driver.live if m.group == 1)
    driver.end(next(m for m in driver.live if m.group == 0), fails=False)
    assert driver.batch()
    assert (slow.phase, slow.restarts, slow.born) == ("live", 1, 1)
    driver.end(next(m for m in driver.live if m is not slow), fails=False)
    assert driver.batch()
    assert isinstance(slow.leaf, Leaf)
    assert isinstance(slow.leaf.outcome, Failed)
    assert "after 1 restarts; raise rollout.max_start_lag" in slow.leaf.outcome.error


def test_an_older_token_than_the_first_moves_the_age_bound() -> None:
    """A drafted one, say: kept from the version before."""
    policy = SchedulerPolicy(
        mode="partial", groups_per_step=1, group_size=1, max_age=1, when_old="restart"
    )
    ledger = RolloutQueue(policy, version=5)
    ledger.wait_for_batch()
    ledger.open_groups([0])
    member = ledger.start_next()
    assert member is not None
    for version in (5, 4, 5):
        ledger.note_version(member, version)
    assert ledger.publish(6) == [member]


def test_a_branch_has_its_parents_age_and_counts_in_its_group() -> None:
    policy = SchedulerPolicy(
        mode="async", groups_per_step=1, group_size=3, max_start_lag=1, max_staleness=9
    )
    driver = Driver(policy, RootedTopology(roots=1), Random(0))
    root = driver.live[0]
    driver.publish()
    branch = driver.fork(root)
    assert (branch.group, branch.sample, branch.born) == (root.group, 1, 0)
    assert {root, branch} <= {*driver.ledger.publish(2)}


def test_a_branch_waits_for_its_place_before_all_that_has_not_begun() -> None:
    policy = SchedulerPolicy(groups_per_step=2, group_size=4, concurrency=2)
    driver = Driver(policy, RootedTopology(roots=2), Random(0))
    first, second = driver.live
    branch = driver.fork(second)
    assert driver.waiting == [branch]
    assert driver.ledger.state.queued == 3
    driver.end(first, fails=False)
    assert driver.live == [second, branch]
    assert branch.attempt == RolloutKey(group=second.group, sample=2, number=0)


def test_a_branch_that_waits_is_stopped_when_its_group_is_complete_without_it() -> None:
    policy = SchedulerPolicy(groups_per_step=1, group_size=1, concurrency=1)
    driver = Driver(policy, RootedTopology(roots=1), Random(0))
    branch = driver.fork(driver.live[0])
    driver.end(driver.live[0], fails=False)
    assert (branch.phase, driver.waiting) == ("stopped", [])
    assert driver.ledger.state.queued == 0


def test_a_branch_that_has_become_too_old_while_it_waits_begins_again() -> None:
    policy = SchedulerPolicy(
        mode="async", groups_per_step=9, group_size=2, concurrency=1, max_start_lag=1
    )
    driver = Driver(policy, RootedTopology(roots=1), Random(0))
    branch = driver.fork(driver.live[0])
    assert (branch.phase, branch.waits) == ("queued", True)
    driver.publish()
    driver.publish()
    assert (branch.phase, branch.waits, branch.restarts) == ("queued", False, 1)
    driver.pump()
    driver.end(driver.live[0], fails=False)
    assert driver.live == [branch]
    assert branch.attempt.number == 1


@given(st.lists(st.tuples(st.integers(0, 9))))
def test_a_heap_is_read_in_order_and_stays(entries: list[tuple[int]]) -> None:
    heapify(entries)
    before = [*entries]
    assert [*iterate_heap(entries)] == sorted(entries)
    assert entries == before


@pytest.mark.parametrize("mode", ["sync", "partial", "async"])
def test_with_one_place_everything_runs_one_after_the_other(mode: str) -> None:
    policy = SchedulerPolicy(mode=mode, groups_per_step=2, group_size=2, concurrency=1)  # pyright: ignore
    driver = Driver(policy, IndependentRollouts(), Random(0))
    for _ in range(4):
        assert len(driver.live) == 1
        driver.end(driver.live[0], fails=False)
    assert driver.batch()
