"""Trees that are killed at any moment and go on from their record: real gate, episodes and store.

Virtual time. To close a gate is, for the store, what a `kill -9` is.
Mutants seen caught: a turn asked about again, or never; a kept trajectory reported as failed; its
tokens counted from 0; a decision at a node of the dead tree; the decisions forgotten; copies
of before a kill not counted; what is too old at a resume goes on; a killed reset
is a failure.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrl.engine.scripted import ScriptedEngine
from agentrl.env import Info, Observation
from agentrl.events.kinds import ComponentNoted, TurnCompleted
from agentrl.policy import Sampling
from agentrl.rollout.branching.aepo import StaticRootSplit
from agentrl.rollout.branching.branching_topology import BranchingTopology
from agentrl.rollout.branching.budget import BranchBudget
from agentrl.rollout.branching.fixed_topologies import FanOutTopology, TreeGrpoTopology
from agentrl.rollout.branching.summary import BranchingSummary
from agentrl.rollout.branching.topology import AnyTopology
from agentrl.rollout.episode import EpisodeLimits
from agentrl.rollout.runner import RolloutRunner
from agentrl.rollout.scheduler.policy import SchedulerPolicy
from agentrl.rollout.scheduler.scheduler import RolloutScheduler
from agentrl.rollout.scheduler.segments import SegmentBudget
from agentrl.rollout.scheduler.work import RolloutWork
from agentrl.runtime.seeds import derive
from agentrl.store.reader import StoreReader
from agentrl.store.run import RunStore
from agentrl.store.settings import StoreSettings
from agentrl.task import Task
from agentrl.trajectory import Finished, Tree, Truncated
from tests.support.dying import Dying
from tests.support.examples import examples
from tests.unit.rollout.branching.test_gated import TOPOLOGIES, Slow, check_tree, run, sync
from tests.unit.rollout.branching.test_grow import Counting, LetterChat, aepo, spoken, surprise


@dataclass
class Process(Dying):
    """One process of a run that branches."""

    folder: Path
    topology: AnyTopology
    policy: SchedulerPolicy
    strategy: Any = "copy"
    on_step: Callable[[Counting], None] = lambda env: None
    env: type[Counting] = Counting
    token_s: float = 1.0
    version: int = 0
    taken: int = 0
    worlds: list[Counting] = field(default_factory=list[Counting])
    over: list[BranchingSummary] = field(default_factory=list[BranchingSummary])
    record: RunStore = field(init=False)

    def __post_init__(self) -> None:
        place = self.folder / "store"
        self.record = RunStore.open(
            place, StoreSettings(), seed=0, position=lambda: self.taken, resume=place.exists()
        )
        self.taken = self.record.restore({}, step=0) or 0

    def make_env(self) -> Counting:
        return self.env(
            strategy=self.strategy,
            opened=self.worlds,
            on_step=self.on_step,
            on_fork=lambda env: None,
        )

    def take(self, count: int) -> list[Task]:
        first, self.taken = self.taken, self.taken + count
        return [Task(prompt="ab", answer="x", id=f"task-{first + i}") for i in range(count)]

    def gate(self) -> RolloutScheduler:
        rollouts = RolloutRunner(
            make_env=self.make_env,
            engine=ScriptedEngine(
                spoken, logprob=surprise, token_s=self.token_s, version=self.version
            ),
            chat=LetterChat(),
            limits=EpisodeLimits(),
            concurrency=self.policy.concurrency,
            retries=self.policy.retries,
        )
        self.trees = BranchingTopology(
            topology=self.topology,
            rollouts=rollouts,
            sampling=Sampling(),
            seed=lambda number, task: derive(0, task.id),
            on_over=self.over.append,
            events=self.record.events,
        )
        for group in self.record.groups:
            if not self.trees.resume_group(group):
                self.record.begin_again(group)
        gate = rollouts.scheduler(
            self.policy,
            self.take,
            sampling=Sampling(),
            seed=lambda number, task, sample: derive(number, sample),
            topology=self.trees,
            play=self.trees.play,
            events=self.record.events,
            first_group=self.record.next_group or 0,
            version=self.version,
        )
        gate.adopt(self.record.groups)
        return gate


@settings(
    max_examples=examples(30),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
)
@given(
    mode=st.sampled_from(("sync", "partial", "async")),
    name=st.sampled_from(sorted(TOPOLOGIES)),
    strategy=st.sampled_from(("copy", "replay")),
    lives=st.lists(st.floats(0.5, 60), min_size=1, max_size=5),
    size=st.integers(1, 6),
    concurrency=st.integers(1, 20),
    breaking=st.sampled_from((0.0, 0.1, 0.3)),
    seed=st.integers(0, 1000),
)
def test_whenever_it_is_killed_a_group_has_its_leaves(
    tmp_path_factory: pytest.TempPathFactory,
    mode: Any,
    name: str,
    strategy: str,
    lives: list[float],
    size: int,
    concurrency: int,
    breaking: float,
    seed: int,
) -> None:
    folder = tmp_path_factory.mktemp("killed")
    topology = TOPOLOGIES[name](size)
    target = topology.growth(topology.start("", seed=0)[0]).ledger.budget.leaves
    policy = SchedulerPolicy(
        mode=mode, groups_per_step=2, group_size=target, concurrency=concurrency, retries=2
    )
    random = Random(seed)

    def sometimes(env: Counting) -> None:
        if random.random() < breaking:
            raise RuntimeError("boom")

    def process() -> Process:
        return Process(folder, topology, policy, strategy, sometimes, Slow)

    Slow.random = Random(seed)
    for seconds in lives:
        run(process().live_for(seconds))

    async def last() -> None:
        made = process()
        with made.record:
            async with made.gate() as gate:
                assert made.record.reruns == 0, "a tree could not be made out of its record"
                for _ in range(4):
                    for tree in await made.step(gate):
                        check_tree(tree, target)
        assert not any(env.is_open for env in made.worlds)
        for shaped in made.over:
            check_shape(shaped, topology, target)

    run(last())
    with StoreReader(folder / "store") as reader:
        events = [event for _, event in reader.events()]
    reset = [e.trajectory for e in events if isinstance(e, TurnCompleted) and is_reset(e)]
    assert len(reset) == len({*reset}), "a trajectory was reset twice under one name"


def is_reset(event: TurnCompleted) -> bool:
    return event.exchange.action is None


def check_shape(shaped: BranchingSummary, topology: AnyTopology, target: int) -> None:
    """Every decision is at a node of the tree, and no path was begun more often than decided."""
    begun = [child.path for decision in shaped.decisions for child in decision.children]
    assert len(begun) == len({*begun})
    for decision in shaped.decisions:
        node = decision.boundary.node
        assert node is not None
        assert len(shaped.tree.tokens(node)) == decision.boundary.context_tokens


@pytest.mark.parametrize("name", sorted(TOPOLOGIES))
@pytest.mark.parametrize("seconds", [3.5, 9.5, 14.5, 19.5, 24.5])
def test_a_tree_is_restored_in_the_very_state_it_was_in(
    tmp_path: Path, name: str, seconds: float
) -> None:
    """Budget, lines with their streaks and signals, roots, what is observed, places drawn."""
    topology = TOPOLOGIES[name](6)
    target = topology.growth(topology.start("", seed=0)[0]).ledger.budget.leaves
    policy = sync(target, groups_per_step=2)

    async def live() -> dict[int, Any]:
        process = Process(tmp_path, topology, policy)
        with process.record:
            async with process.gate() as gate:
                work = asyncio.create_task(step_on(process, gate))
                await asyncio.wait([work], timeout=seconds)
                work.cancel()
                await asyncio.wait([work])
                return states(process)

    async def again() -> dict[int, Any]:
        process = Process(tmp_path, topology, policy)
        is_open = [group.id for group in process.record.groups if group.status == "open"]
        with process.record:
            async with process.gate():
                return {n: state for n, state in states(process).items() if n in is_open}

    before = run(live())
    assert before
    assert run(again()) == before


async def step_on(process: Process, gate: RolloutScheduler) -> None:
    while True:
        await process.step(gate)


def states(process: Process) -> dict[int, Any]:
    groups = process.trees._groups  # pyright: ignore[reportPrivateUsage]
    return {n: group.growing.state for n, group in groups.items() if group.growing is not None}


def test_a_group_that_another_topology_grew_begins_again(tmp_path: Path) -> None:
    fan_out = TOPOLOGIES["fan_out"](6)
    run(Process(tmp_path, fan_out, sync(6, groups_per_step=1)).live_for(9.5))
    other = Process(tmp_path, TOPOLOGIES["tree_grpo"](2), sync(6, groups_per_step=1))

    async def last() -> Tree:
        with other.record:
            async with other.gate() as gate:
                (tree,) = await other.step(gate)
                return tree

    check_tree(run(last()), 6)
    assert other.record.reruns > 0


FIXED: dict[str, AnyTopology] = {
    "fan_out": FanOutTopology(budget=BranchBudget(leaves=8), turns=(1, 2), roots=2),
    "tree_grpo": TreeGrpoTopology(trees=4, rounds=2, width=1),
    "aepo": aepo(30, split=StaticRootSplit(roots=2)),
}
"""With so much room that no two trajectories compete for a place: time does not shape the tree."""


@pytest.mark.parametrize("name", sorted(FIXED))
@pytest.mark.parametrize("lives", [(4.5,), (11.5,), (17.5,), (6.5, 9.5, 12.5)])
def test_a_killed_tree_is_the_one_that_was_never_killed(
    tmp_path: Path, name: str, lives: tuple[float, ...]
) -> None:
    """The same trajectories; every turn decided once, by the same numbers, at the same prefix.

    Copies that a killed process made are counted.
    """
    topology = FIXED[name]
    target = topology.growth(topology.start("", seed=0)[0]).ledger.budget.leaves
    policy = sync(target, groups_per_step=1, concurrency=64)

    async def last(process: Process) -> tuple[list[Any], list[Any], float]:
        with process.record:
            async with process.gate() as gate:
                (tree,) = await process.step(gate)
                copies = gate.figures().get("branching/copies", 0.0)
        decided = [
            (
                (d.boundary.path, d.boundary.turn, d.boundary.tokens, d.reason, d.rise, d.streak),
                (tree.tokens(d.boundary.node or 0), len(d.children)),
            )
            for d in process.over[0].decisions
        ]
        return sorted(t.token_ids for t in tree.trajectories()), sorted(decided, key=repr), copies

    whole = run(last(Process(tmp_path / "whole", topology, policy)))
    for seconds in lives:
        run(Process(tmp_path / "killed", topology, policy).live_for(seconds))
    assert run(last(Process(tmp_path / "killed", topology, policy))) == whole


def test_the_tokens_of_kept_branches_are_counted_once(tmp_path: Path) -> None:
    """Those that a branch shares with its parent are its parent's, after a kill as before it."""
    policy = sync(8, groups_per_step=1, concurrency=64)

    async def step() -> RolloutWork:
        process = Process(tmp_path, FIXED["fan_out"], policy)
        with process.record:
            async with process.gate() as gate:
                await gate.next_batch()
                return gate.work

    work = run(step())
    assert run(step()) == work


@pytest.mark.parametrize("seconds", [11.5, 17.5, 23.5])
def test_a_resumed_branch_has_used_nothing_of_its_parents(tmp_path: Path, seconds: float) -> None:
    """Its segment has as many turns as it plays itself; those of a root end before its turns."""
    budget = SegmentBudget(tokens=1000, turns=3, segments=1)
    policy = sync(8, groups_per_step=1, concurrency=64, segment=budget)

    async def last(folder: Path) -> list[tuple[Any, ...]]:
        process = Process(folder, FIXED["fan_out"], policy)
        with process.record:
            async with process.gate() as gate:
                (tree,) = await process.step(gate)
        return sorted((t.token_ids, t.outcome) for t in tree.trajectories())

    whole = run(last(tmp_path / "whole"))
    assert {type(outcome) for _, outcome in whole} == {Finished, Truncated}
    run(Process(tmp_path / "killed", FIXED["fan_out"], policy).live_for(seconds))
    assert run(last(tmp_path / "killed")) == whole


@pytest.mark.parametrize("name", sorted(FIXED))
@pytest.mark.parametrize("seconds", [4.5, 11.5, 17.5, 23.5])
def test_what_is_too_old_at_a_resume_begins_again(
    tmp_path: Path, name: str, seconds: float
) -> None:
    """Stopped before the weights of a step that is in the checkpoint were loaded."""
    topology = FIXED[name]
    target = topology.growth(topology.start("", seed=0)[0]).ledger.budget.leaves
    policy = sync(target, groups_per_step=1, concurrency=64, max_start_lag=0)
    run(Process(tmp_path, topology, policy).live_for(seconds))

    async def resume() -> Tree:
        process = Process(tmp_path, topology, policy, version=1)
        assert [group.status for group in process.record.groups] == ["open"]
        with process.record:
            async with process.gate() as gate:
                (tree,) = await process.step(gate)
        assert not any(env.is_open for env in process.worlds)
        return tree

    tree = run(resume())
    check_tree(tree, target)
    versions = [{v for v in t.versions if v >= 0} for t in tree.trajectories()]
    assert all(1 in sampled_by for sampled_by in versions)
    if name != "tree_grpo":  # whose later rounds begin where others have been
        assert versions == [{1}] * target


class SlowReset(Counting):
    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        await asyncio.sleep(2.0)
        return await super().reset(seed=seed, options=options)


def test_a_root_that_is_killed_in_its_reset_has_not_failed(tmp_path: Path) -> None:
    topology = FIXED["fan_out"]
    run(Process(tmp_path, topology, sync(8, groups_per_step=1), env=SlowReset).live_for(1.0))

    async def resume() -> Tree:
        process = Process(tmp_path, topology, sync(8, groups_per_step=1))
        with process.record:
            async with process.gate() as gate:
                (tree,) = await process.step(gate)
                return tree

    check_tree(run(resume()), 8)
    with StoreReader(tmp_path / "store") as reader:
        notes = [event.note for _, event in reader.events() if isinstance(event, ComponentNoted)]
    ends = [note["PathEnded"] for note in notes if "PathEnded" in note]
    assert len(ends) == 8
    assert not any(end["again"] for end in ends)
