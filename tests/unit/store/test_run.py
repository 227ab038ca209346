"""A gate that records, stopped at any moment, and another one that goes on from the records.

Virtual time; the real gate, episodes and store. Closing a gate records nothing, so for the store it
is what a `kill -9` is. Mutants seen caught: a part of a turn not recorded, or not gone on from; a
turn not recorded; a restored trajectory played anew under its name; its turns not counted; one that
begins again not abandoned; reopened groups forgotten; what is left of a complete group left open;
the order of a group blind to those opened with it; the age of a restored trajectory lost, or not
looked at; the end of one that was given up as stale not taken back; surplus not counted; used
segments forgotten, or counted in the wrong order.
"""

import asyncio
import shutil
from collections.abc import Coroutine, Generator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrl.env import Action, Observation, Step
from agentrl.events.kinds import (
    TOO_OLD,
    EnvExchange,
    GroupDropped,
    GroupOpened,
    GroupRequest,
    GroupResized,
    GroupsTrained,
    RolloutAbandoned,
    TurnCompleted,
)
from agentrl.message import Message
from agentrl.metrics.latency_trace import LatencyTrace, TrajectoryCost, TurnCost
from agentrl.policy import Sampling
from agentrl.rollout.runner import RolloutRunner
from agentrl.rollout.scheduler.policy import Mode, SchedulerPolicy
from agentrl.rollout.scheduler.queue import RolloutQueue
from agentrl.rollout.scheduler.scheduler import RolloutScheduler
from agentrl.rollout.scheduler.segments import SegmentBudget
from agentrl.rollout.scheduler.topology import IndependentRollouts, RolloutHooks, is_stale
from agentrl.simulate.clock import run_virtual
from agentrl.simulate.engine import EngineSpeed, SimulatedEngine
from agentrl.simulate.study import LIMITS
from agentrl.simulate.world import FillerChat, SimulatedEnv, TraceReplay
from agentrl.store.errors import StoreError
from agentrl.store.reader import StoreReader
from agentrl.store.run import RunStore
from agentrl.store.settings import StoreSettings
from agentrl.task import Task
from agentrl.trajectory import Failed, Finished, Leaf, Node, Tree, Truncated
from tests.support.dying import Dying
from tests.support.examples import examples

R = TypeVar("R")
QUICK = EngineSpeed(
    slots=64, step_s=1.0, slot_s=0.0, pause_s=0.0, load_s=0.0, prefill_tokens_per_step=10**9
)


def turns(*tokens: int, step_s: float = 0.0) -> TrajectoryCost:
    return TrajectoryCost(
        prompt_tokens=1,
        turns=tuple(TurnCost(tokens=n, step_s=step_s, reply_tokens=1) for n in tokens),
    )


class Process(Dying):
    """One process of a run: everything in it is gone when it ends, but for the folder."""

    hooks = RolloutHooks()

    def __init__(
        self,
        folder: Path,
        costs: list[TrajectoryCost],
        policy: SchedulerPolicy,
        *,
        checkpoint: dict[str, Any] | None = None,
        version: int = 0,
    ) -> None:
        world = TraceReplay(LatencyTrace(name="rig", trajectories=tuple(costs)), hang_fraction=0.0)
        self.redundancy = 0
        self.tasks = list(islice(world.tasks(), 200))
        self.taken = 0
        self.resets = 0
        self.world = world
        self.engine = SimulatedEngine(QUICK, tokens_left=world.tokens_left, version=version)
        self.policy = policy
        resume = (folder / "store").exists()
        self.record = RunStore.open(
            folder / "store", StoreSettings(), seed=0, position=lambda: self.taken, resume=resume
        )
        position = self.record.restore(checkpoint or {}, step=version)
        self.taken = position or 0
        self.version = version

    def make_env(self) -> SimulatedEnv:
        self.resets += 1
        return self.world.make_env()

    def take(self, count: int) -> list[Any]:
        found = [self.tasks[self.taken + i] for i in range(count)]
        self.taken += count
        return found

    def gate(self) -> RolloutScheduler:
        rollouts = RolloutRunner(
            make_env=self.make_env,
            engine=self.engine,
            chat=FillerChat(self.world),
            limits=LIMITS,
            concurrency=self.policy.concurrency,
        )
        size = self.policy.group_size
        gate = rollouts.scheduler(
            self.policy,
            self.take,
            sampling=Sampling(),
            seed=lambda number, task, sample: number * size + sample,
            version=self.version,
            events=self.record.events,
            topology=IndependentRollouts(redundancy=self.redundancy),
            first_group=self.record.next_group or 0,
            hooks=self.hooks,
        )
        gate.adopt(self.record.groups)
        return gate


def run(main: Coroutine[Any, Any, R]) -> R:
    return run_virtual(main)


ONE = SchedulerPolicy(mode="partial", groups_per_step=1, group_size=1)


def test_a_turn_goes_on_from_its_last_token(tmp_path: Path) -> None:
    """A turn of 9 tokens, stopped after 3 by a new version, killed, and sampled on from there."""
    policy = replace(ONE, groups_per_step=1, over_provision=2.0)

    async def first() -> None:
        process = Process(tmp_path, [turns(3), turns(2, 9), turns(50)], policy)
        with process.record:
            async with process.gate() as gate:
                await process.step(gate)

    async def second() -> list[Tree]:
        process = Process(tmp_path, [turns(3), turns(2, 9), turns(50)], policy)
        assert [group.id for group in process.record.groups] == [0, 1]
        assert process.record.turns == 1
        (_, group) = process.record.groups
        (rollout,) = group.rollouts.values()
        point = group.resume_point(rollout)
        assert point is not None
        assert len(point.begun) == 1
        with process.record:
            async with process.gate() as gate:
                return [*await process.step(gate), *await process.step(gate)]

    run(first())
    done, long = run(second())
    (short,) = done.trajectories()
    (trajectory,) = long.trajectories()
    assert sum(short.mask) == 3
    assert sum(trajectory.mask) == 2 + 9
    assert trajectory.outcome.reward == 1.0  # pyright: ignore[reportAttributeAccessIssue]
    with StoreReader(tmp_path / "store") as reader:
        assert not any(isinstance(event, RolloutAbandoned) for _, event in reader.events())


class Moody(SimulatedEnv):
    """Says something else each time it is asked."""

    asked = 0

    async def step(self, action: Action) -> Step:
        observation, reward, terminated, truncated, info = await super().step(action)
        Moody.asked += 1
        message = replace(observation.messages[-1], content=f"x{Moody.asked}")
        return Observation((message,)), reward, terminated, truncated, info


def test_a_world_that_does_not_come_back_is_played_again_and_counted(tmp_path: Path) -> None:
    costs = [turns(2, 2, 30)]

    class Unsteady(Process):
        def make_env(self) -> SimulatedEnv:
            self.resets += 1
            return Moody(self.world, breaks_at=None, hangs=False)

    async def first() -> None:
        await Unsteady(tmp_path, costs, ONE).live_for(10)

    async def second() -> RunStore:
        process = Unsteady(tmp_path, costs, ONE)
        assert process.record.turns == 2
        with process.record:
            async with process.gate() as gate:
                (tree,) = await process.step(gate)
                (trajectory,) = tree.trajectories()
                assert sum(trajectory.mask) == 34
        assert process.resets == 2, "one to replay, one to begin again"
        return process.record

    run(first())
    record = run(second())
    assert record.summary == {"restored_turns": 2, "rerun_trajectories": 1, "torn_bytes": 0}
    with StoreReader(tmp_path / "store") as reader:
        gone = [event for _, event in reader.events() if isinstance(event, RolloutAbandoned)]
    assert [(event.reason, event.turns) for event in gone] == [("replay_mismatch", 2)]


def test_groups_wait_for_the_version_they_came_from(tmp_path: Path) -> None:
    """What is trained after the checkpoint trains again, in order, each at its version."""
    policy = SchedulerPolicy(mode="sync", groups_per_step=2, group_size=2)
    costs = [turns(2), turns(3), turns(4)]

    async def first() -> None:
        process = Process(tmp_path, costs, policy)
        with process.record:
            async with process.gate() as gate:
                for _ in range(3):
                    await process.step(gate)

    async def second() -> None:
        process = Process(tmp_path, costs, policy)
        with process.record:
            async with process.gate() as gate:
                for version in range(4):
                    trees = await process.step(gate)
                    sampled = {v for t in trees for n in t.nodes for v in n.versions}
                    assert sampled == {version}
                    assert process.resets == (0 if version < 3 else 4)
            trained = process.record.store.counts()["groups/trained"]
            assert trained == 8

    run(first())
    run(second())


def test_a_group_that_cannot_go_on_begins_again_as_a_whole(tmp_path: Path) -> None:
    costs = [turns(2, 9)]

    async def first() -> None:
        await Process(tmp_path, costs, ONE).live_for(5)

    async def second() -> None:
        process = Process(tmp_path, costs, ONE)
        assert process.record.turns == 1
        process.record.begin_again(process.record.groups[0])
        assert [group.id for group in process.record.groups] == [1]
        assert (process.record.reruns, process.record.turns) == (1, 0)
        with process.record:
            async with process.gate() as gate:
                (tree,) = await process.step(gate)
        assert sum(tree.trajectories()[0].mask) == 11
        assert process.taken == 1, "no task is skipped and none is taken twice"

    run(first())
    run(second())


def test_an_order_and_what_a_group_grew_to_come_back(tmp_path: Path) -> None:
    task = Task(prompt="q")
    with recorded(tmp_path) as record:
        request = GroupRequest(task=task, max_turns=5, max_turn_tokens=7)
        record.events.open_group(0, request, size=2, step=0)
        record.events.emit(GroupResized(group=0, size=6))
        record.events.open_group(1, GroupRequest(task=task), size=2, step=0)
    with RunStore.open(
        tmp_path / "store", StoreSettings(), seed=0, position=lambda: 1, resume=True
    ) as record:
        record.restore({}, step=0)
        kept = [
            (group.size, group.opened.size, group.request.max_turns, group.request.max_turn_tokens)
            for group in record.groups
        ]
        assert kept == [(6, 2, 5, 7), (2, 2, None, None)]
        ledger = RolloutQueue(replace(ONE, group_size=2, min_valid=1), version=0)
        for group in record.groups:
            ledger.adopt(group)
        ledger.admit()
        found = [ledger.group(number) for number in (0, 1)]
        assert [group and len(group.members) for group in found] == [6, 2]
        firsts = [ledger.order(group.members[0]) for group in found if group]
        assert [order and order.max_turns for order in firsts] == [5, None]
        orders = [
            (group.order.trajectories, group.order.max_turns, group.order.max_turn_tokens)
            for group in found
            if group and group.order
        ]
        assert orders == [(None, 5, 7), (None, None, None)], (
            "a second try of the task is as the first one was"
        )
        record.begin_again(record.groups[0])
        again = record.groups[-1]
        assert (again.id, again.size, again.opened.size) == (2, 2, 2)
        assert (again.request.max_turns, again.request.max_turn_tokens) == (5, 7)


def test_a_run_whose_store_was_removed_says_so(tmp_path: Path) -> None:
    """Mutant: told is that the index does not close, and that nothing is lost."""
    record = RunStore.open(
        tmp_path / "store", StoreSettings(), seed=0, position=lambda: 0, resume=False
    )
    shutil.rmtree(tmp_path / "store")
    with pytest.raises(StoreError, match="was removed or moved while the run"), record:
        record.checkpoint(1)


def test_redundancy_is_counted_on_after_a_kill(tmp_path: Path) -> None:
    """All of a step is done and recorded, and no checkpoint has it."""
    costs = [turns(2, 2, 2), turns(2, 2, 2), turns(*[2] * 7)] * 20
    policy = SchedulerPolicy(mode="sync", groups_per_step=2, group_size=2)

    async def step() -> dict[str, float]:
        process = Process(tmp_path, costs, policy)
        process.redundancy = 1
        with process.record:
            async with process.gate() as gate:
                await gate.next_batch()
                figures = gate.figures()
        return {name: x for name, x in figures.items() if name.startswith("redundancy/")}

    figures = run(step())
    assert figures["redundancy/aborted_tokens_mean"] == 6.0
    assert run(step()) == figures


@pytest.mark.parametrize("lives", [(4.5,), (5.5, 5.5), (2.5, 9.5, 4.5), (14.5,)])
@pytest.mark.parametrize(
    "budget",
    [
        SegmentBudget(tokens=6, turns=100, segments=1),
        SegmentBudget(tokens=4, turns=100, segments=4),
        SegmentBudget(tokens=1000, turns=3, segments=2),
        SegmentBudget(tokens=7, turns=2, segments=3),
    ],
    ids=lambda budget: f"{budget.tokens}-{budget.turns}-{budget.segments}",
)
def test_a_kill_leaves_no_more_of_a_segments_budget(
    tmp_path: Path, budget: SegmentBudget, lives: tuple[float, ...]
) -> None:
    costs = [turns(5, 1, 4, 2, 2, 9, 1, 1, 30)]
    policy = SchedulerPolicy(mode="sync", groups_per_step=1, group_size=1, segment=budget)

    async def finish(folder: Path) -> tuple[Any, int, int]:
        process = Process(folder, costs, policy)
        with process.record:
            async with process.gate() as gate:
                (tree,) = await process.step(gate)
        (trajectory,) = tree.trajectories()
        sampled = {t for t, mask in zip(trajectory.turns, trajectory.mask, strict=True) if mask}
        return trajectory.outcome, sum(trajectory.mask), len(sampled)

    whole = run(finish(tmp_path / "whole"))
    assert isinstance(whole[0], Truncated)
    for seconds in lives:
        run(Process(tmp_path / "killed", costs, policy).live_for(seconds))
    assert run(finish(tmp_path / "killed")) == whole


async def train_step(process: Process) -> dict[str, Any]:
    """Train on one batch, and return the checkpoint after it."""
    with process.record:
        async with process.gate() as gate:
            batch = await gate.next_batch()
            numbers = tuple(group.state.number for group in batch.groups)
            gate.events.emit(GroupsTrained(groups=numbers, step=1))
            return {"store": process.record.checkpoint(1)}


@pytest.mark.parametrize("is_trained", [False, True])
def test_a_segment_waits_for_one_version_and_no_longer(tmp_path: Path, is_trained: bool) -> None:
    """Spent at version 0, and stopped before the step to version 1 or in it: at 1 it goes on."""
    budget = SegmentBudget(tokens=100, turns=1, segments=9)
    policy = replace(ONE, over_provision=2.0, segment=budget)
    costs = [turns(9), turns(2, 2, 2), *[turns(9)] * 20]

    async def second(checkpoint: dict[str, Any], version: int) -> list[int]:
        process = Process(tmp_path, costs, policy, checkpoint=checkpoint, version=version)
        with process.record:
            async with process.gate() as gate:
                while True:
                    for tree in await process.step(gate):
                        (trajectory,) = tree.trajectories()
                        if tree.task == process.tasks[1]:
                            return [v for v in trajectory.versions if v >= 0]

    if is_trained:
        resumed = run(second(run(train_step(Process(tmp_path, costs, policy))), 1))
    else:
        run(Process(tmp_path, costs, policy).live_for(4.5))
        resumed = run(second({}, 0))
    assert resumed == [0, 0, 1, 1, 2, 2]


def test_what_a_complete_group_does_not_need_is_given_up(tmp_path: Path) -> None:
    """Killed when the first of two had ended, which was enough: the other one is not played on."""

    async def first() -> None:
        process = Process(tmp_path, [turns(3), turns(2, 50)], ONE)
        process.redundancy = 1
        await process.live_for(4)

    async def second() -> None:
        process = Process(tmp_path, [turns(3), turns(2, 50)], ONE)
        process.redundancy = 1
        kept = process.record.groups[0]
        assert sorted(one.reason for one in kept.rollouts.values()) == ["", "surplus"]
        with process.record:
            async with process.gate() as gate:
                (tree,) = await process.step(gate)
                assert len(tree.leaves) == 1

    run(first())
    run(second())
    # What is ready is in no batch yet: as far as the records go its group is open.
    with recorded(tmp_path / "other") as record:
        record.events.task_position = lambda: 5
        for number, after in ((0, 1), (1, 0)):
            request = GroupRequest(task=Task(prompt="q"))
            record.events.open_group(number, request, size=1, step=0, after=after)
            for sample in range(2):
                record.events.start_rollout(number, sample=sample, seed=0, version=0)
            record.events.complete_group(number)
    with StoreReader(tmp_path / "other" / "store") as reader:
        assert [reader.group(number).opened.order for number in (0, 1)] == [3, 4]
        assert reader.groups("complete") == [0, 1]
        gone = [event.reason for _, event in reader.events() if isinstance(event, RolloutAbandoned)]
        assert gone == ["surplus"] * 4


def test_a_restored_trajectory_is_as_old_as_it_was(tmp_path: Path) -> None:
    """Begun at version 0, killed, resumed by a trainer at 1 that wants none begun before 0."""
    run(Process(tmp_path, [turns(2, 90)], ONE).live_for(4))
    process = Process(tmp_path, [turns(2, 90)], ONE)
    process.record.store.close()
    ledger = RolloutQueue(replace(ONE, max_start_lag=1), version=0)
    ledger.adopt(process.record.groups[0])
    ledger.publish(1)
    ledger.admit()
    ledger.wait_for_batch()
    member = ledger.start_next()
    assert member is not None
    assert (member.born, member.oldest) == (0, 0)
    assert ledger.publish(2) == [member]


@pytest.mark.parametrize(
    "bounds", [{"max_start_lag": 0}, {"max_age": 0, "when_old": "restart"}], ids=["lag", "age"]
)
def test_what_is_too_old_for_the_checkpoints_version_begins_again(
    tmp_path: Path, bounds: dict[str, Any]
) -> None:
    """Stopped during a training step, after which nothing has loaded its weights."""
    policy = replace(ONE, over_provision=4.0, **bounds)
    costs = [turns(1), turns(1), turns(3, 3, 3), turns(2, 2)] + [turns(2)] * 20

    async def second(checkpoint: dict[str, Any]) -> list[set[int]]:
        process = Process(tmp_path, costs, policy, checkpoint=checkpoint, version=1)
        assert {group.id for group in process.record.groups} == {1, 2, 3}
        versions: list[set[int]] = []
        with process.record:
            async with process.gate() as gate:
                for _ in range(3):
                    for tree in await process.step(gate):
                        versions += [{v for v in t.versions if v >= 0} for t in tree.trajectories()]
                assert gate.figures()["gate/restarted"] >= 3
        return versions

    assert run(second(run(train_step(Process(tmp_path, costs, policy))))) == [{1}, {2}, {3}]
    with StoreReader(tmp_path / "store") as reader:
        gone = [event for _, event in reader.events() if isinstance(event, RolloutAbandoned)]
    assert {event.reason for event in gone} == {TOO_OLD}


@pytest.mark.parametrize("chances", [0, 1])
def test_age_ends_what_is_kept_as_it_ends_what_is_live(tmp_path: Path, chances: int) -> None:
    """Of three: one has ended, one goes on, and one was begun later and is not too old."""
    with recorded(tmp_path) as record:
        request = GroupRequest(task=Task(prompt="q"))
        tree = record.events.open_group(0, request, size=3, step=0).tree
        for sample, version in enumerate((0, 0, 1)):
            begun = record.events.start_rollout(0, sample=sample, seed=0, version=version)
            prompt = tree.add(Node(parent=None, source="prompt", token_ids=(1,), turn=0))
            begun.complete_turn(prompt, EnvExchange.resetting(SEEN))
            if sample == 1:
                begun.finish(Leaf(node=prompt, outcome=Finished(1.0), sample=sample))
    with recorded(tmp_path) as record:
        policy = replace(ONE, group_size=3, max_start_lag=0, max_restarts=chances)
        ledger = RolloutQueue(policy, version=1)
        ledger.adopt(record.groups[0])
        ((group, end),) = ledger.admit()
        assert end.group == "open"
        ledger.wait_for_batch()
        begins = [member.sample for member in iter(ledger.start_next, None)]
    going_on, ended, young = group.members
    assert (young.phase, young.restarts, young.attempt.number) == ("live", 0, 0)
    if chances:
        assert begins == [0, 1, 2]
        assert (group.state.live, group.state.valid, group.state.failed) == (3, 0, 0)
        for member in (going_on, ended):
            assert (member.born, member.restarts, member.attempt.number) == (1, 1, 1)
        # The end of the other one is given up by the try that follows.
        assert ledger.take_given_up() == [going_on]
    else:
        assert begins == [2]
        assert (group.state.live, group.state.valid, group.state.failed) == (1, 0, 2)
        assert {*ledger.take_given_up()} == {going_on, ended}
        for member in (going_on, ended):
            assert member.leaf is not None
            assert is_stale(member.leaf.outcome)
    assert ledger.take_given_up() == []


def test_what_was_given_up_after_its_end_stays_given_up(tmp_path: Path) -> None:
    """Stale in a group that goes on since it grew; killed after it trained, and trained again."""
    policy = replace(ONE, over_provision=2.0, max_start_lag=1, max_restarts=0)
    costs = [turns(2), turns(4), *[turns(3)] * 30]

    class Growing(Process):
        hooks = RolloutHooks(
            more=lambda ends: [int(state.number == state.target == 1) for state, _ in ends]
        )

    async def live(process: Process, until: int) -> tuple[dict[str, Any], Tree]:
        with process.record:
            async with process.gate() as gate:
                while True:
                    checkpoint = {"store": process.record.checkpoint(process.version)}
                    batch = await gate.next_batch()
                    (number,) = [group.state.number for group in batch.groups]
                    process.version += 1
                    gate.events.emit(GroupsTrained(groups=(number,), step=process.version))
                    if number == until:
                        return checkpoint, batch.trees[0]
                    await gate.load_weights(None, process.version)

    checkpoint, tree = run(live(Growing(tmp_path, costs, policy), 1))
    process = Growing(tmp_path, costs, policy, checkpoint=checkpoint, version=2)
    _, again = run(live(process, 1))
    outcomes = [[type(leaf.outcome) for leaf in one.leaves] for one in (tree, again)]
    assert outcomes == [[Failed, Finished]] * 2
    assert again.leaves[0].outcome == tree.leaves[0].outcome
    with StoreReader(tmp_path / "store") as reader:
        kept = {(t.sample, t.state, t.outcome) for t in reader.trajectories(1)}
    assert kept == {
        (0, "abandoned", "stale"),
        (0, "ended", "failed_stale"),
        (1, "ended", "finished"),
    }


def test_a_try_that_began_again_is_as_old_as_itself(tmp_path: Path) -> None:
    """Opened at version 0, begun again at 2 for its age, killed: it is not too old at 3 again."""
    with recorded(tmp_path) as record:
        request = GroupRequest(task=Task(prompt="q"))
        tree = record.events.open_group(0, request, size=1, step=0).tree
        for version in (0, 2):
            begun = record.events.start_rollout(0, sample=0, seed=0, version=version)
            node = tree.add(Node(parent=None, source="prompt", token_ids=(1,), turn=0))
            begun.complete_turn(node, EnvExchange.resetting(SEEN, env_seed=5))
            if version == 0:
                begun.abandon(TOO_OLD)
    with recorded(tmp_path) as record:
        (group,) = record.groups
        ledger = RolloutQueue(replace(ONE, max_start_lag=1), version=2)
        ledger.adopt(group)
        ledger.admit()
        ledger.wait_for_batch()
        member = ledger.start_next()
        assert member is not None
        assert (member.born, member.restarts) == (2, 1)
        assert member.resumed is not None
        history = member.resumed.history(group.task)
        assert history is not None
        assert history.seed == 5, "the world's seed is not the sampling noise's"
        assert not ledger.publish(3)
        assert ledger.publish(4) == [member]


def test_a_complete_group_never_begins_again(tmp_path: Path) -> None:
    """Handed over and trained, but in no checkpoint: whatever its age, its record is closed."""
    with recorded(tmp_path) as record:
        request = GroupRequest(task=Task(prompt="q"))
        tree = record.events.open_group(0, request, size=1, step=0).tree
        begun = record.events.start_rollout(0, sample=0, seed=0, version=0)
        prompt = tree.add(Node(parent=None, source="prompt", token_ids=(1,), turn=0))
        begun.complete_turn(prompt, EnvExchange.resetting(SEEN))
        said = Node(
            parent=0, source="sampled", token_ids=(2,), logprobs=(-1.0,), versions=(0,), turn=0
        )
        begun.finish(Leaf(node=tree.add(said), outcome=Finished(1.0), sample=0))
        record.events.complete_group(0)
        record.events.emit(GroupsTrained(groups=(0,), step=1))
    with recorded(tmp_path) as record:
        (group,) = record.groups
        for bound in (
            replace(ONE, max_start_lag=0),
            replace(ONE, max_age=0, when_old="restart"),
        ):
            ledger = RolloutQueue(bound, version=0)
            ledger.adopt(group)
            ((admitted, end),) = ledger.admit()
            assert end.group == "ready"
            ledger.accept(admitted)
            for version in range(1, 5):
                assert not ledger.publish(version)
            assert [member.phase for member in admitted.members] == ["ended"]


def test_a_second_try_is_a_second_try_after_a_kill(tmp_path: Path) -> None:
    """Two tries of a task and no more, wherever it is killed: before, within or after the second.

    Mutants seen caught: the tries of a kept group not counted; a dropped group not opened again, so
    that its second try is lost; one whose second try is kept tried twice.
    """
    policy = replace(ONE, min_valid=1, requeues=1, retries=0, mode="sync")

    class Broken(Process):
        def make_env(self) -> SimulatedEnv:
            self.resets += 1
            return self.world.make_env() if self.taken > 1 else Breaks(self.world)

    async def whole() -> tuple[list[str], int]:
        process = Broken(tmp_path, [turns(4)], policy)
        with process.record:
            async with process.gate() as gate:
                (tree,) = await process.step(gate)
                figures = gate.figures()
        return [tree.task.id], int(figures["gate/dropped_groups"])

    for seconds in (0.5, 1.5, 2.5, 3.5, 4.5, 5.5):
        run(Broken(tmp_path, [turns(4)], policy).live_for(seconds))
    run(whole())
    with StoreReader(tmp_path / "store") as reader:
        opened = [event for _, event in reader.events() if isinstance(event, GroupOpened)]
    tries = [(event.request.tries, event.request.retry_of) for event in opened[:3]]
    assert tries == [(0, None), (1, 0), (0, None)]
    assert [event.order for event in opened[:3]] == [0, 0, 1]


def test_what_was_dropped_after_the_checkpoint_is_judged_again(tmp_path: Path) -> None:
    """And what was dropped before it is not, but for a second try that is still owed."""
    checkpoint: dict[str, Any] = {}
    with recorded(tmp_path) as record:
        for number, requeued in ((0, False), (1, True), (2, True)):
            order = GroupRequest(task=Task(prompt="q", id=f"t{number}"), round=3, round_size=2)
            record.events.open_group(number, order, size=1, step=0)
            if number == 2:
                checkpoint = record.checkpoint(1)
            record.events.emit(
                GroupDropped(group=number, reason="no", requeued=requeued, counts=True)
            )
        record.events.open_group(3, GroupRequest(task=Task(prompt="q")), size=1, step=0)
        record.events.emit(GroupDropped(group=3, reason="rerun"))
    # From the beginning: all were dropped later, and what does not count stays dropped.
    with recorded(tmp_path) as record:
        assert [group.id for group in record.groups] == [0, 1, 2]
        assert record.events.state.requeued == {}
    with recorded(tmp_path, checkpoint) as record:
        assert [group.id for group in record.groups] == [2]
        ((dropped, again),) = record.events.state.requeued.items()
        assert dropped == 1
        assert (again.task.id, again.tries, again.retry_of, again.round) == ("t1", 1, 1, 0)
        record.events.open_group(4, again, size=1, step=0)
        record.events.emit(GroupDropped(group=2, reason="no", counts=True))
        later = record.checkpoint(2)
    # What is in the second checkpoint, by the line that led to it.
    with recorded(tmp_path, later) as record:
        assert [group.id for group in record.groups] == [4]
        assert record.events.state.requeued == {}
    (tmp_path / "store" / "ledger.sqlite").unlink()
    for extra in ("-wal", "-shm"):
        (tmp_path / "store" / f"ledger.sqlite{extra}").unlink(missing_ok=True)
    with recorded(tmp_path, later) as record:
        assert [group.id for group in record.groups] == [4], "the log alone says the same"


class Breaks(SimulatedEnv):
    """Takes its time, and breaks."""

    def __init__(self, world: TraceReplay) -> None:
        super().__init__(world, breaks_at=None, hangs=False)

    async def step(self, action: Action) -> Step:
        await asyncio.sleep(1.0)
        raise RuntimeError("broken")


@contextmanager
def recorded(folder: Path, checkpoint: dict[str, Any] | None = None) -> Generator[RunStore]:
    """Yield the record of a run, restored to a checkpoint or to the beginning."""
    resume = (folder / "store").exists()
    settings = StoreSettings()
    record = RunStore.open(folder / "store", settings, seed=0, position=lambda: 1, resume=resume)
    record.restore({"store": checkpoint} if checkpoint else {}, step=0)
    with record:
        yield record


SEEN = Observation((Message("user", "q"),))


@settings(
    max_examples=examples(40),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
)
@given(
    mode=st.sampled_from(["sync", "partial", "async"]),
    lives=st.lists(st.floats(0.5, 60), min_size=1, max_size=5),
    size=st.integers(1, 3),
    lag=st.sampled_from([None, 1]),
)
def test_whenever_it_is_killed_every_turn_counts_once(
    tmp_path_factory: pytest.TempPathFactory,
    mode: Mode,
    lives: list[float],
    size: int,
    lag: int | None,
) -> None:
    folder = tmp_path_factory.mktemp("killed")
    policy = SchedulerPolicy(
        mode=mode, groups_per_step=2, group_size=size, concurrency=6, max_start_lag=lag
    )
    costs = [turns(3, 2, step_s=1.0), turns(12), turns(1, 1, 1), turns(30, 4, step_s=2.0)]
    for seconds in lives:
        run(Process(folder, costs, policy).live_for(seconds))

    async def last() -> int:
        process = Process(folder, costs, policy)
        with process.record:
            assert process.record.reruns == 0
            async with process.gate() as gate:
                for _ in range(6):
                    for tree in await process.step(gate):
                        assert len(tree.leaves) == size
                        number = process.tasks.index(tree.task)
                        for t in tree.trajectories():
                            cost = costs[(number * size + t.sample) % len(costs)]
                            assert sum(t.mask) == sum(turn.tokens for turn in cost.turns)
                            assert len(t.turn_rewards) == len(cost.turns)
            return process.record.store.position

    position = run(last())
    with StoreReader(folder / "store") as reader:
        events = [event for _, event in reader.events()]
        trained = reader.find_trained(position)
        begun = [e.trajectory for e in events if isinstance(e, TurnCompleted) and is_reset(e)]
        assert len(begun) == len({*begun}), "a trajectory was reset twice under one name"
        assert len(trained) == 12
        assert sorted(trained)[:12] == sorted(trained)
    reasons = {event.reason for event in events if isinstance(event, RolloutAbandoned)}
    assert reasons <= {"begun again", "too old", "surplus"}


def is_reset(event: TurnCompleted) -> bool:
    return event.exchange.action is None
