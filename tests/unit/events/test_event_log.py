"""The stream of events: what it folds to, in what order it is told, and what it refuses.

Mutants seen caught, here and by the tests of the store: a node that is not told of; seconds rounded
in the bytes; a part of a turn taken for whole; an abandoned trajectory that keeps its end; a fork
that shares a turn more or less; tries before it was played again counted; a second try owed twice;
an event that cannot follow kept; a subscriber's errors counted in all and not in a row.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrl.env import Action, Observation, TurnRequest
from agentrl.errors import AgentrlError
from agentrl.events.kinds import (
    PLAYED_AGAIN,
    EnvExchange,
    Event,
    GroupCompleted,
    GroupDropped,
    GroupRequest,
    GroupsTrained,
    RolloutAbandoned,
    RolloutFinished,
    RolloutStarted,
    TurnCompleted,
)
from agentrl.events.log import EventLog
from agentrl.events.state import EventError, GroupState, RunState
from agentrl.message import Message
from agentrl.rollout.curation.dapo import DynamicSamplingFilter
from agentrl.rollout.curation.rules import CurationRules
from agentrl.rollout.scheduler.policy import Mode, SchedulerPolicy
from agentrl.rollout.scheduler.scheduler import RolloutScheduler
from agentrl.store.codec import pack, unpack
from agentrl.store.reader import StoreReader
from agentrl.store.run import RunStore
from agentrl.task import Task
from agentrl.trajectory import Failed, Finished, Leaf, Node
from tests.support.dying import Dying
from tests.support.examples import examples
from tests.unit.rollout.branching.test_gated import TOPOLOGIES
from tests.unit.rollout.branching.test_kept import Process as BranchingProcess
from tests.unit.rollout.curation.test_kept import Process as CuratedProcess
from tests.unit.store.test_run import Process, run, turns

TASK = Task(prompt="q", id="t")


def plain(group: GroupState) -> dict[str, Any]:
    """Return everything that a group's state says, to be compared."""
    values = {part.name: getattr(group, part.name) for part in fields(group)}
    del values["tree"], values["later"]
    return values | {
        "nodes": {id: group.tree.node(id) for id in group.told},
        "notes": group.notes,
        "points": [group.resume_point(rollout) for rollout in group.open_rollouts],
    }


@dataclass(eq=False)
class Shadow:
    """Folds what a log would keep, from its bytes, and compares after every event."""

    state: RunState = field(default_factory=RunState)
    events: int = 0

    def on_event(self, event: Event, state: RunState) -> None:
        try:
            self._compare(event, state)
        except AssertionError as error:
            raise AgentrlError(f"after {event}: {error}") from error

    def _compare(self, event: Event, state: RunState) -> None:
        self.events += 1
        self.state.apply(cast(Event, unpack(pack(event))))
        numbers = {state.next_group, state.next_rollout, state.task_position}
        assert numbers == {
            self.state.next_group,
            self.state.next_rollout,
            self.state.task_position,
        }
        assert [*self.state.groups] == [*state.groups]
        assert self.state.requeued == state.requeued
        assert self.state.retried == state.retried
        group = getattr(event, "group", None)
        if group in state.groups:
            assert plain(self.state.groups[group]) == plain(state.groups[group])


def check_live(gate: RolloutScheduler, first: int) -> None:
    """Check that what the scheduler runs is what the state has as open.

    Rollouts before number `first` are of a process that was killed: they may wait to be resumed.
    """
    running = {(one.group, one.sample) for one in gate.activities()}
    is_open = {
        (group.id, rollout.sample): rollout.id
        for group in gate.events.state.groups.values()
        for rollout in group.open_rollouts
    }
    assert running <= is_open.keys()
    assert {key for key, id in is_open.items() if id >= first} <= running


async def play(process: Dying, steps: int) -> int:
    """Play steps of a process in the company of a shadow; return the number of events."""
    shadow = Shadow(state=copied(process.record))
    first = shadow.state.next_rollout
    with process.record:
        process.record.events.subscribe(shadow)
        async with process.gate() as gate:
            for _ in range(steps):
                await process.step(gate)
                check_live(gate, first)
    return shadow.events


def copied(record: RunStore) -> RunState:
    """Return the state that a record gives once more: that of another process."""
    state = RunState()
    reader = StoreReader(record.store.folder) if record.store.position else None
    if reader is None:
        return state
    with reader:
        for group in (*reader.groups("open"), *reader.groups("complete")):
            for _, event in reader.events():
                if getattr(event, "group", None) == group and not isinstance(
                    event, GroupCompleted | GroupDropped
                ):
                    state.apply(event)
            if reader.state(group) == "complete":
                state.apply(GroupCompleted(group=group))
    live = record.events.state
    state.groups = dict(sorted(state.groups.items()))
    state.next_group, state.next_rollout = live.next_group, live.next_rollout
    state.task_position = live.task_position
    state.requeued, state.retried = dict(live.requeued), {*live.retried}
    return state


def independent(folder: Path, mode: Mode) -> Process:
    costs = [turns(3, 2, step_s=1.0), turns(12), turns(1, 1, 1), turns(30, 4, step_s=2.0)]
    policy = SchedulerPolicy(
        mode=mode, groups_per_step=2, group_size=3, concurrency=5, max_start_lag=1
    )
    process = Process(folder, costs, policy)
    process.redundancy = 1
    return process


def branching(name: str) -> Callable[[Path, Mode], BranchingProcess]:
    def made(folder: Path, mode: Mode) -> BranchingProcess:
        topology = TOPOLOGIES[name](5)
        size = topology.growth(topology.start("", seed=0)[0]).ledger.budget.leaves
        policy = SchedulerPolicy(
            mode=mode, groups_per_step=2, group_size=size, concurrency=8, retries=2
        )
        return BranchingProcess(folder, topology, policy, "copy")

    return made


def curated(folder: Path, mode: Mode) -> CuratedProcess:
    return CuratedProcess(folder, CurationRules(filter=DynamicSamplingFilter()), mode=mode)


KINDS: dict[str, Callable[[Path, Mode], Dying]] = {
    "independent": independent,
    "curated": curated,
    **{name: branching(name) for name in TOPOLOGIES},
}


@pytest.mark.parametrize("kind", sorted(KINDS))
@settings(
    max_examples=examples(6),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
)
@given(
    mode=st.sampled_from(("sync", "partial", "async")),
    lives=st.lists(st.floats(0.5, 40), max_size=2),
)
def test_the_fold_of_the_log_is_the_live_state(
    tmp_path_factory: pytest.TempPathFactory, kind: str, mode: Mode, lives: list[float]
) -> None:
    """After every event, in each mode and topology, and wherever it was killed before."""
    folder = tmp_path_factory.mktemp("fold")
    for seconds in lives:
        run(KINDS[kind](folder, mode).live_for(seconds))
    assert run(play(KINDS[kind](folder, mode), 3)) >= 3


class Recording:
    """A sink, a subscriber, and the order in which both hear."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []
        self.full = False

    def append(self, event: Event) -> int:
        if self.full:
            raise OSError("no space left on device")
        self.heard.append(("sink", type(event).__name__))
        return len(self.heard)

    async def wait_settled(self) -> None:
        pass

    def on_event(self, event: Event, state: RunState) -> None:
        del state
        self.heard.append(("subscriber", type(event).__name__))


def sampled(parent: int) -> Node:
    return Node(
        parent=parent, source="sampled", token_ids=(2,), turn=0, logprobs=(-1.0,), versions=(0,)
    )


RESET = EnvExchange.resetting(Observation((Message("user", "q"),)))
STEP = EnvExchange.stepping(
    Action("a"), (Observation((Message("tool", "b"),)), 0.5, False, False, {}), seconds=2.0
)


def opened(log: EventLog, group: int = 0) -> GroupState:
    state = log.open_group(group, GroupRequest(task=TASK), size=1, step=0)
    state.tree.add(Node(parent=None, source="prompt", token_ids=(1,), turn=0))
    return state


def test_an_event_is_kept_before_anybody_hears_of_it() -> None:
    recording = Recording()
    log = EventLog(recording)
    log.subscribe(recording)
    opened(log)
    assert recording.heard == [("sink", "GroupOpened"), ("subscriber", "GroupOpened")]


def test_what_could_not_be_kept_has_not_happened() -> None:
    recording = Recording()
    log = EventLog(recording)
    opened(log)
    recording.full = True
    with pytest.raises(OSError, match="no space left"):
        log.start_rollout(0, sample=0, seed=1, version=0)
    assert (log.state.groups[0].rollouts, log.state.next_rollout) == ({}, 0)


def test_turns_stand_where_they_were_told() -> None:
    log = EventLog(Recording())
    group = opened(log)
    rollout = log.start_rollout(0, sample=0, seed=7, version=0)
    rollout.complete_turn(0, RESET)
    group.tree.add(sampled(0))  # of a try that nobody told of
    node = group.tree.add(sampled(0))
    rollout.complete_turn(node, STEP)
    part = group.tree.add(sampled(node))
    rollout.extend_turn(part)
    assert group.told == {0, 2, 3}
    point = group.resume_point(rollout.rollout)
    assert point is not None
    assert (point.node, point.turn, point.begun) == (part, 1, (2,))
    assert (point.turn_rewards, point.seconds, point.history.seed) == ((0.5,), 2.0, 7)
    before = rollout.rollout.truncate_to(0)
    assert before is not None
    assert (before.at, before.turns, before.mid_turn) == (0, 0, False)
    assert rollout.rollout.truncate_to(2) is None


def test_a_state_keeps_all_of_an_exchange_but_what_it_shows() -> None:
    request = TurnRequest(max_tokens=3)
    observation = Observation((Message("user", "hi"),), tools=(), request=request)
    step = (observation, 0.5, True, True, {"reward_components": {"a": 0.5}, "tool_results": (1,)})
    exchange = EnvExchange.stepping(Action("x"), cast(Any, step), seconds=2.0)
    exchange = replace(exchange, env_seed=7)
    bare = Observation((), request=request)
    assert exchange.without_observation() == replace(exchange, observation=bare)


def test_a_try_takes_the_place_of_the_one_before() -> None:
    log = EventLog(Recording())
    group = opened(log)
    first = log.start_rollout(0, sample=0, seed=1, version=0)
    first.complete_turn(0, RESET)
    first.finish(Leaf(node=0, outcome=Finished(1.0), sample=0))
    log.start_rollout(0, sample=0, seed=1, version=2)
    third = log.start_rollout(0, sample=0, seed=1, version=3)
    third.abandon("failed: tool: gone", failure="tool")
    third.abandon("surplus")
    reasons = [one.reason for one in group.rollouts.values()]
    assert reasons == ["too old", "begun again", "failed: tool: gone"]
    assert [one.started.attempt for one in group.rollouts.values()] == [0, 1, 2]
    assert (group.failures(0), group.restarts(0)) == (1, 1)


def test_what_is_played_again_has_all_its_retries() -> None:
    log = EventLog(Recording())
    group = opened(log)
    log.start_rollout(0, sample=0, seed=1, version=0).abandon("failed: tool", failure="tool")
    broken = log.start_rollout(0, sample=0, seed=1, version=0)
    broken.finish(Leaf(node=None, outcome=Failed("tool", "gone"), sample=0))
    assert group.failures(0) == 1
    broken.abandon(PLAYED_AGAIN)
    assert group.failures(0) == 0
    log.start_rollout(0, sample=0, seed=1, version=0).abandon("failed: tool", failure="tool")
    assert group.failures(0) == 1


def test_what_comes_after_it_was_given_up_is_let_go() -> None:
    log = EventLog(Recording())
    group = opened(log)
    rollout = log.start_rollout(0, sample=0, seed=1, version=0)
    rollout.abandon("surplus")
    rollout.complete_turn(0, RESET)
    rollout.extend_turn(0)
    assert group.rollouts[0].exchanges == []


def misuses() -> dict[str, tuple[Callable[[EventLog], Event], str]]:
    def finished(log: EventLog) -> Event:
        log.start_rollout(0, sample=0, seed=0, version=0).finish(
            Leaf(node=None, outcome=Failed("tool", "x"), sample=0)
        )
        return TurnCompleted(trajectory=0, group=0, at=None, exchange=RESET)

    def trained(log: EventLog) -> Event:
        log.complete_group(0)
        log.emit(GroupsTrained(groups=(0,), step=1))
        return GroupsTrained(groups=(0,), step=2)

    def grown(log: EventLog) -> Event:
        log.complete_group(0)
        return RolloutStarted(trajectory=0, group=0, sample=0, seed=0, version=0, attempt=0)

    def open_one(log: EventLog) -> Event:
        log.start_rollout(0, sample=0, seed=0, version=0)
        return GroupCompleted(group=0)

    def twice(log: EventLog) -> Event:
        rollout = log.start_rollout(0, sample=0, seed=0, version=0)
        rollout.abandon("surplus")
        return RolloutAbandoned(trajectory=0, group=0, reason="surplus", turns=0)

    def unknown(log: EventLog) -> Event:
        del log
        leaf = Leaf(node=None, outcome=Finished(0.0), sample=0)
        return RolloutFinished(trajectory=9, group=0, leaf=leaf)

    return {
        "a turn after the end": (finished, "trajectory 0 is ended"),
        "trained twice": (trained, "group 0 is not open"),
        "trained while open": (lambda _: GroupsTrained(groups=(0,), step=1), "group 0 is open"),
        "trained with itself": (
            lambda _: GroupsTrained(groups=(0, 0), step=1),
            "contain a duplicate",
        ),
        "grown when complete": (grown, "group 0 is complete"),
        "complete too early": (open_one, r"trajectories \[0\] of group 0 are open"),
        "abandoned twice": (twice, "abandon it only once"),
        "of no group": (lambda _: GroupDropped(group=4, reason="x"), "group 4 is not open"),
        "of no trajectory": (unknown, "trajectory 9 is not of its group"),
    }


@pytest.mark.parametrize("name", sorted(misuses()))
def test_an_event_that_cannot_follow_is_refused_and_not_kept(name: str) -> None:
    make, text = misuses()[name]
    recording = Recording()
    log = EventLog(recording)
    opened(log)
    event = make(log)
    kept = len(recording.heard)
    with pytest.raises(EventError, match=text):
        log.emit(event)
    assert len(recording.heard) == kept


def test_a_group_is_opened_once() -> None:
    log = EventLog()
    opened(log)
    with pytest.raises(EventError, match="group 0 was opened before"):
        log.open_group(0, GroupRequest(task=TASK), size=1, step=0)


def test_a_second_try_is_owed_until_it_is_opened() -> None:
    log = EventLog()
    opened(log)
    log.emit(GroupDropped(group=0, reason="few", requeued=True))
    ((dropped, again),) = log.state.requeued.items()
    assert (dropped, again.tries, again.retry_of, again.task) == (0, 1, 0, TASK)
    log.open_group(1, again, size=1, step=0)
    assert log.state.requeued == {}


class Broken:
    """A subscriber with an error of its own, at every event or at every so many."""

    def __init__(self, error: Exception, every: int = 1) -> None:
        self.error = error
        self.every = every
        self.heard = 0

    def on_event(self, event: Event, state: RunState) -> None:
        del event, state
        self.heard += 1
        if self.heard % self.every == 0:
            raise self.error


def test_a_subscriber_that_breaks_does_not_stop_the_run(caplog: pytest.LogCaptureFixture) -> None:
    log, broken, recording = EventLog(), Broken(ValueError("oops")), Recording()
    log.subscribe(broken)
    log.subscribe(recording)
    for group in range(5):
        opened(log, group)
    assert (broken.heard, len(recording.heard)) == (3, 5)
    assert caplog.text.count("Broken failed on a GroupOpened") == 3


def test_a_subscriber_that_breaks_now_and_then_hears_everything() -> None:
    log, moody = EventLog(), Broken(ValueError("oops"), every=2)
    log.subscribe(moody)
    for group in range(9):
        opened(log, group)
    assert moody.heard == 9


def test_a_subscriber_may_stop_the_run() -> None:
    log = EventLog()
    log.subscribe(Broken(AgentrlError("enough")))
    with pytest.raises(AgentrlError, match="enough"):
        opened(log)


async def test_who_keeps_nothing_settles_at_once() -> None:
    await asyncio.wait_for(EventLog().wait_settled(), 1)
