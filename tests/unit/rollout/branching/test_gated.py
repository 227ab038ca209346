"""Trees behind the gate, in virtual time: the real runner, episodes, topologies and copies.

Mutants seen caught: ends not reported to the topology, or only after the verdict on the group;
a group's worlds left open; the gate not closing its topology; a stopped parent that keeps its
branches' places; a probe counted as a turn; a branch without a start until it has run; an ended
trajectory that begins again unreported; the prior not carried; a retried branch back in the budget;
a branch that plays without a place; a turn that ended by length and goes on as the next one.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from itertools import count
from random import Random
from typing import Any, Self, TypeVar

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentrl.engine.scripted import ScriptedEngine
from agentrl.env import Action, Info, Observation, Step
from agentrl.errors import ForkUnsupported
from agentrl.policy import Sampling
from agentrl.rollout.branching import forks
from agentrl.rollout.branching.aepo import MonitoredRootSplit, OnlineRootSplit, StaticRootSplit
from agentrl.rollout.branching.arpo import ArpoPaperRule
from agentrl.rollout.branching.balanced import EntropyBalancedTopology
from agentrl.rollout.branching.branching_topology import BranchingTopology
from agentrl.rollout.branching.budget import BranchBudget
from agentrl.rollout.branching.fixed_topologies import FanOutTopology, TreeGrpoTopology
from agentrl.rollout.branching.summary import BranchingSummary
from agentrl.rollout.branching.topology import AnyTopology
from agentrl.rollout.episode import EpisodeLimits
from agentrl.rollout.runner import RolloutRunner
from agentrl.rollout.scheduler.policy import SchedulerPolicy
from agentrl.rollout.scheduler.queue import RolloutQueue
from agentrl.rollout.scheduler.scheduler import RolloutScheduler
from agentrl.rollout.scheduler.segments import SegmentBudget
from agentrl.rollout.scheduler.topology import RolloutHooks
from agentrl.runtime.seeds import derive
from agentrl.simulate.clock import run_virtual
from agentrl.task import Task
from agentrl.trajectory import Failed, Finished, Tree
from benchmarks.letters import LetterChat
from tests.support.examples import examples
from tests.unit.rollout.branching.test_grow import (
    SIGNAL,
    Counting,
    aepo,
    always,
    check_world,
    spoken,
    surprise,
)

R = TypeVar("R")


def run(main: Coroutine[Any, Any, R]) -> R:
    async def to_the_end() -> R:
        result = await main
        for _ in range(5):
            await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return result

    return run_virtual(to_the_end())


@dataclass
class Rig:
    """A gate with a branching topology over worlds that know all their copies."""

    topology: AnyTopology
    policy: SchedulerPolicy
    strategy: Any = "copy"
    on_step: Callable[[Counting], None] = lambda env: None
    on_fork: Callable[[Counting], None] = lambda env: None
    env: type[Counting] = Counting
    hooks: RolloutHooks = field(default_factory=RolloutHooks)
    limits: EpisodeLimits = field(default_factory=EpisodeLimits)
    token_s: float = 1.0
    make_engine: Callable[[], ScriptedEngine] | None = None
    worlds: list[Counting] = field(default_factory=list[Counting])
    over: list[BranchingSummary] = field(default_factory=list[BranchingSummary])

    def make_env(self) -> Counting:
        return self.env(
            strategy=self.strategy,
            opened=self.worlds,
            on_step=self.on_step,
            on_fork=self.on_fork,
        )

    def gate(self) -> RolloutScheduler:
        scripted = ScriptedEngine(spoken, logprob=surprise, token_s=self.token_s)
        self.engine = self.make_engine() if self.make_engine else scripted
        rollouts = RolloutRunner(
            make_env=self.make_env,
            engine=self.engine,
            chat=LetterChat(),
            limits=self.limits,
            concurrency=self.policy.concurrency,
            retries=self.policy.retries,
        )
        self.trees = BranchingTopology(
            topology=self.topology,
            rollouts=rollouts,
            sampling=Sampling(),
            seed=lambda number, task: derive(0, number),
            on_over=self.over.append,
        )
        numbers = count()
        return rollouts.scheduler(
            self.policy,
            lambda wanted: [
                Task(prompt="ab", answer="x", id=f"task-{next(numbers)}") for _ in range(wanted)
            ],
            sampling=Sampling(),
            seed=lambda number, task, sample: derive(number, sample),
            topology=self.trees,
            play=self.trees.play,
            hooks=self.hooks,
        )

    @property
    def open(self) -> int:
        return sum(env.is_open for env in self.worlds)


def sync(size: int = 8, **changes: Any) -> SchedulerPolicy:
    return replace(SchedulerPolicy(groups_per_step=2, group_size=size), **changes)


def starts_of(shaped: BranchingSummary) -> int:
    return sum(len(decision.children) for decision in shaped.decisions)


def check_tree(tree: Tree, leaves: int) -> None:
    """Exactly the budget; each leaf's world heard what its path said; no two are the same."""
    assert sorted(leaf.sample for leaf in tree.leaves) == list(range(leaves))
    said: list[tuple[int, ...]] = []
    for trajectory in tree.trajectories():
        if isinstance(trajectory.outcome, Finished):
            check_world(trajectory.token_ids)
            said.append(trajectory.token_ids)
    assert len({*said}) == len(said)


@pytest.mark.parametrize("strategy", ["copy", "native", "replay"])
def test_a_group_has_the_leaves_of_its_budget_and_they_share_what_they_share(
    strategy: str,
) -> None:
    async def main() -> None:
        rig = Rig(always(), sync(), strategy=strategy)
        async with rig.gate() as gate:
            batch = await gate.next_batch()
            assert rig.open == 0
            for group, tree in zip(batch.groups, batch.trees, strict=True):
                assert len(group.members) == group.state.target == 8
                check_tree(tree, 8)
                prompts = sum(node.source == "prompt" for node in tree.nodes)
                assert prompts == 1
            for shaped in rig.over:
                assert starts_of(shaped) == 6
                assert [copied.strategy for copied in shaped.copies] == [strategy] * 6
                check_prefixes(shaped)
            figures = gate.figures()
            assert figures["branching/branches_mean"] == 6
            assert figures["branching/copies"] == 12
            assert 0 < figures["branching/shared_tokens"] < 1
            assert not any(name.startswith("branching/failed") for name in figures)

    run(main())


def check_prefixes(shaped: BranchingSummary) -> None:
    """Where a branch began there is one more way on from the place's node."""
    tree = shaped.tree
    paths = [tree.path_ids(leaf.node) for leaf in tree.leaves if leaf.node is not None]
    for decision in shaped.decisions:
        if decision.children:
            node = decision.boundary.node
            assert node is not None
            ways = {path[path.index(node) + 1] for path in paths if node in path}
            assert len(ways) == 1 + len(decision.children)
            assert len(tree.tokens(node)) == decision.boundary.context_tokens


def test_late_branches_begin_before_their_group_is_complete() -> None:
    async def main() -> None:
        rig = Rig(TreeGrpoTopology(trees=2, rounds=2, width=2), sync(10))
        async with rig.gate() as gate:
            for version in range(1, 4):
                batch = await gate.next_batch()
                for group, tree in zip(batch.groups, batch.trees, strict=True):
                    assert len(group.members) == 10
                    check_tree(tree, 10)
                    assert Counter(leaf.root for leaf in tree.leaves) == {0: 5, 1: 5}
                await gate.load_weights(None, version)
        assert rig.open == 0
        assert any(copied.path for shaped in rig.over for copied in shaped.copies)

    run(main())


def test_fresh_roots_fill_what_branches_left(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forks, "_warned", set[type]())

    def refuse(env: Counting) -> None:
        raise ForkUnsupported("threads run in it")

    async def main() -> None:
        rig = Rig(always(6, split=StaticRootSplit(roots=1)), sync(6), on_fork=refuse)
        async with rig.gate() as gate:
            batch = await gate.next_batch()
            for tree in batch.trees:
                check_tree(tree, 6)
            assert gate.figures()["branching/failed_copies/unsupported"] > 6
            assert "branching/copies" not in gate.figures()
        assert rig.open == 0

    run(main())
    (record,) = [one for one in caplog.records if one.name == forks.__name__]
    assert "could not branch, nor will the next ones: threads run in it" in record.getMessage()


def test_a_failed_branch_begins_again_alone_and_a_failed_root_as_it_was() -> None:
    broke: list[Counting] = []

    def once(env: Counting) -> None:
        if len(env.heard) == 3 and len(broke) < 2:
            broke.append(env)
            raise RuntimeError("boom")

    async def main() -> None:
        rig = Rig(always(), sync(groups_per_step=1), on_step=once)
        async with rig.gate() as gate:
            (tree,) = (await gate.next_batch()).trees
            check_tree(tree, 8)
            assert {type(leaf.outcome) for leaf in tree.leaves} == {Finished}
            assert gate.figures()["gate/retried"] == 2
        assert rig.open == 0

    run(main())


def test_what_fails_for_good_is_one_leaf_of_the_budget() -> None:
    def never(env: Counting) -> None:
        raise RuntimeError("boom")

    async def main() -> None:
        rig = Rig(always(4), sync(4, retries=1), on_step=never)
        async with rig.gate() as gate:
            batch = await gate.next_batch()
            for group, tree in zip(batch.groups, batch.trees, strict=True):
                assert len(group.members) == 4
                assert [type(leaf.outcome) for leaf in tree.leaves] == [Failed] * 4
        assert rig.open == 0

    run(main())


def test_a_parked_tree_keeps_its_worlds_and_goes_on() -> None:
    async def main() -> None:
        policy = sync(mode="partial", groups_per_step=1, over_provision=3.0)
        rig = Rig(aepo(), policy)
        async with rig.gate() as gate:
            parked = 0
            for version in range(1, 5):
                await gate.next_batch()
                parked = max(parked, rig.open)
                await asyncio.sleep(1000)
                await gate.load_weights(None, version)
            assert parked
            versions = {
                v for shaped in rig.over for node in shaped.tree.nodes for v in node.versions
            }
            assert len(versions) > 1
        assert rig.open == 0

    run(main())


def test_closing_in_the_middle_closes_every_world_and_says_what_was_decided() -> None:
    async def main(seconds: float, topology: AnyTopology) -> None:
        rig = Rig(topology, sync(10, groups_per_step=2))
        async with rig.gate() as gate:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(seconds):
                    await gate.next_batch()
            assert rig.open
        assert rig.open == 0
        assert len(rig.over) == 2

    for seconds in (0.5, 3.5, 6.5, 9.5, 12.5, 15.5):
        for topology in (always(10), TreeGrpoTopology(trees=2, rounds=2, width=2)):
            run(main(seconds, topology))


def test_closing_between_a_fork_and_its_first_step_closes_the_copy() -> None:
    """The branch's coroutine is cancelled before it has begun: nothing in it ever runs."""

    async def main() -> None:
        rig = Rig(
            always(4, split=StaticRootSplit(roots=1)), sync(4, groups_per_step=1), token_s=0.0
        )
        gate, before = rig.gate(), asyncio.all_tasks()
        forked, closed = gate.fork, asyncio.Event()

        def fork(*arguments: Any, **named: Any) -> Any:
            seat = forked(*arguments, **named)
            for task in asyncio.all_tasks() - before - {waits}:
                task.cancel()
            closed.set()
            return seat

        gate.fork = fork  # pyright: ignore[reportAttributeAccessIssue]
        waits = asyncio.create_task(gate.next_batch())
        await closed.wait()
        await gate.close()
        waits.cancel()
        assert len(rig.worlds) >= 2
        assert rig.open == 0

    run(main())


def test_a_probe_is_no_turn_of_its_own() -> None:
    async def turns(topology: AnyTopology) -> tuple[int, list[tuple[int, ...]]]:
        heard: list[Any] = []
        hooks = RolloutHooks(on_turn=lambda attempt, tree: heard.append(attempt))
        rig = Rig(topology, sync(4, groups_per_step=1), hooks=hooks)
        async with rig.gate() as gate:
            (tree,) = (await gate.next_batch()).trees
        return len(heard), [t.token_ids for t in tree.trajectories()]

    probed = aepo(4, rule=ArpoPaperRule(threshold=100), split=StaticRootSplit(roots=4))
    plain = FanOutTopology(budget=BranchBudget(leaves=4), width=1)
    assert run(turns(probed)) == run(turns(plain))


@pytest.mark.parametrize(
    "topology",
    [
        FanOutTopology(budget=BranchBudget(leaves=2)),
        TreeGrpoTopology(trees=2, rounds=0),
        aepo(2, split=StaticRootSplit(roots=2)),
    ],
    ids=["fan_out", "tree_grpo", "aepo"],
)
def test_turns_that_end_by_length_are_turns_of_their_own(topology: AnyTopology) -> None:
    """Nothing probes, every turn ends after 4 tokens of 1 s, and one may take 10 s."""
    heard: list[int] = []

    async def main() -> None:
        rig = Rig(
            topology,
            sync(2, groups_per_step=1, retries=0),
            hooks=RolloutHooks(on_turn=lambda attempt, tree: heard.append(attempt.sample)),
            limits=EpisodeLimits(max_turn_tokens=4, turn_s=10.0),
            make_engine=lambda: ScriptedEngine(
                lambda request: [97 + derive(request.seed, i) % 26 for i in range(50)], token_s=1.0
            ),
        )
        async with rig.gate() as gate:
            (tree,) = (await gate.next_batch()).trees
        assert [type(leaf.outcome) for leaf in tree.leaves] == [Finished, Finished]

    run(main())
    assert Counter(heard) == {0: 3, 1: 3}


def test_segments_count_a_probed_turn_once() -> None:
    async def main() -> None:
        policy = SchedulerPolicy(
            mode="partial",
            groups_per_step=1,
            group_size=4,
            segment=SegmentBudget(tokens=1000, turns=4, segments=1),
        )
        rig = Rig(always(4), policy)
        async with rig.gate() as gate:
            (tree,) = (await gate.next_batch()).trees
            assert {type(leaf.outcome) for leaf in tree.leaves} == {Finished}

    run(main())


def test_what_groups_have_shown_is_what_the_next_ones_begin_with() -> None:
    async def main() -> None:
        rig = Rig(aepo(split=OnlineRootSplit()), sync())
        async with rig.gate() as gate:
            assert isinstance(rig.trees.topology, EntropyBalancedTopology)
            await gate.next_batch()
            seen = rig.trees.topology.prior
            assert seen.roots >= 2
            assert seen.tools > 0
            observed = [shaped.observed for shaped in rig.over]
            assert observed[0] is not None
            assert observed[1] is not None
            assert observed[0] + observed[1] == seen

    run(main())


def test_pre_monitoring_runs_one_alone() -> None:
    async def main() -> None:
        rig = Rig(aepo(split=MonitoredRootSplit()), sync(groups_per_step=1))
        async with rig.gate() as gate:
            batch = asyncio.create_task(gate.next_batch())
            await asyncio.sleep(0.5)
            assert gate.figures()["gate/live"] == 1
            (tree,) = (await batch).trees
            check_tree(tree, 8)

    run(main())


class Slow(Counting):
    """Takes random virtual seconds for everything."""

    random = Random(0)

    async def reset(self, **options: Any) -> tuple[Observation, Info]:
        await asyncio.sleep(self.random.choice((0.0, 1.0, 9.0)))
        return await super().reset(**options)

    async def step(self, action: Action) -> Step:
        await asyncio.sleep(self.random.choice((0.0, 1.0, 30.0)))
        return await super().step(action)

    async def fork(self) -> Self:
        await asyncio.sleep(self.random.choice((0.0, 5.0)))
        return await super().fork()

    async def close(self) -> None:
        await super().close()
        await asyncio.sleep(self.random.choice((0.0, 1.0)))


TOPOLOGIES: dict[str, Callable[[int], AnyTopology]] = {
    "aepo": lambda n: aepo(n, split=OnlineRootSplit()),
    "monitored": lambda n: aepo(n, split=MonitoredRootSplit()),
    "always": always,
    "fan_out": lambda n: FanOutTopology(budget=BranchBudget(leaves=n), turns=(1, 2)),
    "tree_grpo": lambda n: TreeGrpoTopology(trees=n, rounds=2, width=1),
}


@settings(max_examples=examples(40))
@example("partial", "fan_out", "replay", 4, 8, 1, 0, 0.4, 1, 791)
@example("partial", "always", "replay", 6, 12, 1, 0, 0.4, 0, 314)
@given(
    mode=st.sampled_from(("sync", "partial", "async")),
    name=st.sampled_from(sorted(TOPOLOGIES)),
    strategy=st.sampled_from(("copy", "replay")),
    size=st.integers(1, 6),
    concurrency=st.integers(1, 20),
    lag=st.none() | st.integers(0, 2),
    age=st.none() | st.integers(0, 2),
    breaking=st.sampled_from((0.0, 0.1, 0.4)),
    retries=st.integers(0, 2),
    seed=st.integers(0, 1000),
)
def test_whatever_happens_a_group_has_its_leaves_and_nothing_stays_open(
    mode: Any,
    name: str,
    strategy: str,
    size: int,
    concurrency: int,
    lag: int | None,
    age: int | None,
    breaking: float,
    retries: int,
    seed: int,
) -> None:
    random = Random(seed)

    gates: list[RolloutScheduler] = []
    playing: set[int] = set()

    def sometimes(env: Counting) -> None:
        playing.add(sum(at.phase not in ("start", "gate") for at in gates[-1].activities()))
        if random.random() < breaking:
            raise RuntimeError("boom")

    topology = TOPOLOGIES[name](size)
    target = topology.growth(topology.start("", seed=0)[0]).ledger.budget.leaves
    policy = SchedulerPolicy(
        mode=mode,
        groups_per_step=2,
        group_size=target,
        concurrency=concurrency,
        over_provision=2.0,
        max_start_lag=lag,
        max_age=age,
        when_old="restart",
        max_restarts=1,
        retries=retries,
    )

    async def main() -> list[tuple[Any, ...]]:
        Slow.random = Random(seed)
        random.seed(seed)
        rig = Rig(
            topology, policy, strategy=strategy, on_step=sometimes, on_fork=sometimes, env=Slow
        )
        played: list[tuple[Any, ...]] = []
        async with rig.gate() as gate:
            gates.append(gate)
            for version in range(3):
                batch = await gate.next_batch()
                for group, tree in zip(batch.groups, batch.trees, strict=True):
                    assert len(group.members) == target
                    check_tree(tree, target)
                    for trajectory in tree.trajectories():
                        check_ages(batch.trainable, trajectory.versions, version)
                        played.append((trajectory.token_ids, trajectory.versions))
                await asyncio.sleep(random.choice((0.0, 40.0)))
                await gate.load_weights(None, version + 1)
        assert rig.open == 0
        return played

    def check_ages(
        trainable: Callable[[np.ndarray], np.ndarray], versions: tuple[int, ...], now: int
    ) -> None:
        for trains, version in zip(trainable(np.array(versions)), versions, strict=True):
            assert not trains or age is None or now - version <= age

    assert run(main()) == run(main())
    assert max(playing) <= concurrency


def test_signals_are_measured_behind_the_gate_too() -> None:
    async def main() -> None:
        rig = Rig(aepo(), sync(groups_per_step=1))
        async with rig.gate() as gate:
            await gate.next_batch()
        (shaped,) = rig.over
        probes = [decision.boundary.probe for decision in shaped.decisions]
        assert {probe.tokens for probe in probes if probe} == {SIGNAL.tokens}
        assert sum(decision.boundary.turn == 0 for decision in shaped.decisions) == 2

    run(main())


def test_a_branch_is_as_old_as_its_oldest_token() -> None:
    policy = SchedulerPolicy(
        mode="async", groups_per_step=1, group_size=1, max_age=1, when_old="restart"
    )
    ledger = RolloutQueue(policy, version=1)
    ledger.open_groups([0])
    member = ledger.start_next()
    assert member is not None
    ledger.note_version(member, 0)
    assert ledger.publish(2) == [member]
