"""Every slot of curation behind the gate, in all three modes; and what the gate does for it.

Mutants seen caught: a group grown for ever, or not at all; the target of an order, or of growth, or
its turns ignored; more valid ones wanted than a small group has; tasks that run out waited for; a
repeat not told apart, or told by who asked last; a step that drops for ever; lost successes kept.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.engine.scripted import ScriptedEngine
from agentrl.env import Action, Info, Observation, Step
from agentrl.events.kinds import GroupRequest
from agentrl.message import Message
from agentrl.policy import GenerateRequest, Sampling
from agentrl.rollout.curation.allocation import DarsAllocator, DartAllocator
from agentrl.rollout.curation.cdas import CdasTaskSampler
from agentrl.rollout.curation.dapo import DynamicSamplingFilter, NothingToLearn
from agentrl.rollout.curation.group_curation import GroupCuration
from agentrl.rollout.curation.rules import CurationRules
from agentrl.rollout.curation.sampling import CurriculumSampler, UniformTaskSampler
from agentrl.rollout.curation.state_json import decode, encode
from agentrl.rollout.curation.steps import HighEntropySteps
from agentrl.rollout.curation.success_pool import PooledSuccess, PoolState, SuccessPool
from agentrl.rollout.curation.task_curator import CuratedBatch, TaskCurator
from agentrl.rollout.curation.vade import VadeTaskSampler
from agentrl.rollout.episode import EpisodeLimits
from agentrl.rollout.runner import RolloutRunner
from agentrl.rollout.scheduler.policy import SchedulerPolicy
from agentrl.rollout.scheduler.queue import RolloutQueue
from agentrl.rollout.scheduler.scheduler import RolloutScheduler
from agentrl.rollout.scheduler.segments import SegmentBudget
from agentrl.rollout.scheduler.topology import GroupProgress, OutOfTasks
from agentrl.rollout.seed_repeats import SeedRepeats
from agentrl.rollout.task_sampler import TaskSampler
from agentrl.runtime.seeds import derive
from agentrl.task import Task
from agentrl.trajectory import Failed, Finished, Leaf, Tree, reward_of
from benchmarks.letters import END, LetterChat
from tests.unit.rollout.curation.test_step import Graded, reply

Mode = Literal["sync", "partial", "async"]
MODES: tuple[Mode, ...] = ("sync", "partial", "async")
WHAT = ("wrong", "right", "mixed")
"""Task i is `WHAT[i % 3]`: every second trajectory of `mixed` is right, and sample 3 breaks."""


@dataclass
class Rig:
    """A gate with curation over scripted trajectories."""

    rules: CurationRules
    mode: Mode = "sync"
    wanted: int = 3
    tasks: int = 12
    group_size: int = 4
    engine: ScriptedEngine = field(default_factory=lambda: ScriptedEngine(reply))
    env: Callable[[], Any] = Graded
    policy: Mapping[str, Any] = field(default_factory=dict[str, Any])
    curation: GroupCuration = field(init=False)
    gate: RolloutScheduler = field(init=False)

    def __post_init__(self) -> None:
        curator = TaskCurator(
            self.rules,
            TaskSampler(Graded(), seed=0, limit=self.tasks),
            seed=0,
            group_size=self.group_size,
            max_turns=8,
        )
        self.curation = GroupCuration(curator=curator, wanted=self.wanted)
        keys: dict[str, Any] = {"retries": 0, "concurrency": 24, **self.policy}
        rollouts = RolloutRunner(
            make_env=self.env,
            engine=self.engine,
            chat=LetterChat(),
            limits=EpisodeLimits(context_tokens=64),
            retries=0,
            entropies=self.rules.steps is not None,
        )
        self.gate = rollouts.scheduler(
            SchedulerPolicy(
                mode=self.mode,
                groups_per_step=self.wanted,
                group_size=self.group_size,
                over_provision=1.5 if self.mode == "partial" else 1.0,
                **keys,
            ),
            self.curation.tasks,
            sampling=Sampling(),
            seed=lambda number, task, sample: derive(number, task.id, sample),
            hooks=self.curation.hooks,
        )
        self.curation.flying = self.gate.list_unfinished

    async def steps(self, count: int) -> list[CuratedBatch]:
        found: list[CuratedBatch] = []
        async with asyncio.timeout(60), self.gate:
            for version in range(1, count + 1):
                batch = await self.gate.next_batch()
                found.append(self.curation.batch(batch.trees))
                self.curation.version = version
                await self.gate.load_weights(None, version)
        return found


def kind(tree: Tree) -> str:
    return WHAT[int(tree.task.id[1:]) % 3]


def rewards(tree: Tree) -> list[float | None]:
    return [reward_of(leaf.outcome) for leaf in tree.leaves]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("sampler", [UniformTaskSampler(), CdasTaskSampler(), VadeTaskSampler()])
async def test_samplers(mode: Mode, sampler: CurriculumSampler) -> None:
    """No task is in two places at once, and what the sampler knows comes from groups that ended."""
    rig = Rig(CurationRules(sampler=sampler), mode)
    for curated in await rig.steps(4):
        ids = [tree.task.id for tree in curated.trees]
        assert len(ids) == len(set(ids)) == 3
        assert curated.figures["curation/kept"] >= 3 or mode != "sync"
    assert rig.curation.curator.state.steps == 4
    assert len(rig.curation.curator.state.drawn) >= 9 or mode == "sync"


@pytest.mark.parametrize("mode", MODES)
async def test_dart_makes_groups_of_solved_tasks_smaller(mode: Mode) -> None:
    rig = Rig(
        CurationRules(sampler=UniformTaskSampler(), allocation=DartAllocator()),
        mode,
        tasks=3,
        wanted=3,
    )
    sizes: dict[str, list[int]] = {what: [] for what in WHAT}
    for curated in await rig.steps(5):
        for tree in curated.trees:
            sizes[kind(tree)].append(len(tree.leaves))
    assert {*sizes["wrong"]} == {*sizes["mixed"]} == {4}
    assert sizes["right"][0] == 4
    assert sizes["right"][-1] == 2, "9 / 1 - 7"


class Endless(Graded):
    """Goes on until it is stopped; if `quick`, it ends in its second turn and pays."""

    quick = False

    async def reset(self, **keys: Any) -> tuple[Observation, Info]:
        self._turn = 0
        return await super().reset(**keys)

    async def step(self, action: Action) -> Step:
        self._turn += 1
        ends = self.quick and self._turn == 2
        return Observation((Message("user", "on"),)), float(ends), ends, False, {}


async def test_an_order_has_its_own_number_of_trajectories_and_turns() -> None:
    rollouts = RolloutRunner(
        make_env=Endless,
        engine=ScriptedEngine(lambda request: (1, END)),
        chat=LetterChat(),
        limits=EpisodeLimits(context_tokens=640, max_turns=5),
    )
    (first, second), given = (
        [Task(prompt=f"task {i}", id=f"t{i}") for i in range(2)],
        list[GroupRequest](),
    )

    def orders(count: int) -> list[Task | GroupRequest]:
        given.append(GroupRequest(task=first, trajectories=3, max_turns=2))
        return [given[-1], second][:count]

    gate = rollouts.scheduler(
        SchedulerPolicy(groups_per_step=2, group_size=2),
        orders,
        sampling=Sampling(),
        seed=lambda number, task, sample: derive(number, task.id, sample),
    )
    async with gate:
        trees = (await gate.next_batch()).trees
    assert [len(tree.leaves) for tree in trees] == [3, 2]
    turns = [{max(n.turn for n in t.nodes if n.source == "sampled") + 1} for t in trees]
    assert turns == [{2}, {5}]


@pytest.mark.parametrize("mode", MODES)
async def test_dart_caps_turns_at_a_bit_more_than_the_longest_success(mode: Mode) -> None:
    made: list[Endless] = []

    def quick_at_first() -> Endless:
        made.append(env := Endless())
        env.quick = len(made) <= 4 * 2 * 2
        return env

    rules = CurationRules(
        sampler=UniformTaskSampler(), allocation=DartAllocator(window=1, threshold=1.0)
    )
    engine = ScriptedEngine(lambda request: (1, END))
    rig = Rig(rules, mode, tasks=2, wanted=2, engine=engine, env=quick_at_first)
    lengths = [
        len({node.turn for node in tree.path(leaf.node or 0) if node.source == "sampled"})
        for curated in await rig.steps(6)
        for tree in curated.trees
        for leaf in tree.leaves
    ]
    assert lengths[0] == 2
    assert lengths[-1] == 3, "1.5 times the longest success, and not 8"


@pytest.mark.parametrize("mode", MODES)
async def test_dars_grows_groups_that_fail(mode: Mode) -> None:
    rig = Rig(CurationRules(allocation=DarsAllocator()), mode)
    seen: dict[str, int] = {}
    for curated in await rig.steps(3):
        for tree in curated.trees:
            samples = sorted(leaf.sample for leaf in tree.leaves)
            assert samples == list(range(len(samples)))
            seen[tree.task.id] = len(samples)
        assert curated.figures["curation/trajectories_extra"] > 0 or mode != "sync"
    assert {WHAT[int(task[1:]) % 3]: size for task, size in seen.items()} == {
        "wrong": 10,
        "right": 4,
        "mixed": 4,
    }


async def test_dars_grows_before_the_filter_looks_and_once() -> None:
    """Sample 5 of a task that fails is right: a second phase makes the group worth keeping."""

    def late(request: GenerateRequest) -> Sequence[int]:
        _, _, sample, _, _ = request.id.split("/")
        return (*map(ord, "yes" if sample == "5" else "no"), END)

    rules = CurationRules(
        allocation=DarsAllocator(max_trajectories=6), filter=DynamicSamplingFilter()
    )
    rig = Rig(rules, engine=ScriptedEngine(late))
    (curated,) = await rig.steps(1)
    for tree in curated.trees:
        assert rewards(tree).count(1.0) == 1
        assert len(tree.leaves) == 6
    assert curated.figures["curation/trajectories_asked"] == 18
    assert curated.figures["curation/trajectories_extra"] == 6


@pytest.mark.parametrize("mode", MODES)
async def test_the_filter_keeps_groups_that_differ(mode: Mode) -> None:
    rig = Rig(CurationRules(sampler=UniformTaskSampler(), filter=DynamicSamplingFilter()), mode)
    found = await rig.steps(3)
    assert all(kind(tree) == "mixed" for curated in found for tree in curated.trees)
    assert all(len(curated.trees) == 3 for curated in found)
    dropped = ("curation/dropped_all_right", "curation/dropped_all_wrong")
    assert all(sum(curated.figures[name] for curated in found) > 0 for name in dropped)


@pytest.mark.parametrize("mode", MODES)
async def test_a_step_that_dropped_enough_trains_on_what_it_has(mode: Mode) -> None:
    rules = CurationRules(filter=DynamicSamplingFilter(max_refills=0))
    rig = Rig(rules, mode, policy={"concurrency": 12})
    (curated,) = await rig.steps(1)
    assert 0 < len(curated.trees) < 3
    assert curated.figures["curation/short"] == 3 - len(curated.trees)


@pytest.mark.parametrize("mode", MODES)
async def test_a_step_of_nothing_stops_the_run(mode: Mode) -> None:
    rules = CurationRules(filter=DynamicSamplingFilter(max_refills=1, min_spread=0.9))
    with pytest.raises(NothingToLearn, match=r"groups that can.*max_refills"):
        await Rig(rules, mode).steps(1)


@pytest.mark.parametrize("mode", MODES)
async def test_steps_of_low_entropy_weigh_nothing(mode: Mode) -> None:
    """The entropy of a trajectory's only turn rises with its sample."""
    engine = ScriptedEngine(reply, entropy=lambda request, i, t: float(request.id.split("/")[2]))
    rules = CurationRules(steps=HighEntropySteps(keep=0.5, how="top"))
    rig = Rig(rules, mode, engine=engine)
    for curated in await rig.steps(2):
        assert curated.weights is not None
        for tree, weights in zip(curated.trees, curated.weights, strict=True):
            valid = 3 if kind(tree) == "mixed" else 4
            assert len(weights) == valid
            kept = {sample for sample, turns in weights.items() if turns[0] == 1.0}
            assert kept == {*range(valid - 2, valid)}


def test_a_pool_without_its_trajectories_is_begun_anew() -> None:
    rules = CurationRules(pool=SuccessPool())
    who = Rig(rules).curation.curator
    tree = Tree(Task(prompt="q", id="t0"))
    group_of = {"step": 0, "ordinal": 0, "task_id": "t0", "asked": 1}
    state = replace(who.state, pool=_pool(group_of))
    again = TaskCurator(
        rules,
        TaskSampler(Graded(), seed=0, limit=12),
        seed=0,
        group_size=4,
        max_turns=8,
        state=decode(type(state), encode(state)),
    )
    assert again.state.pool == PoolState()
    assert tree.leaves == ()


def _pool(group: Mapping[str, Any]) -> PoolState:
    from agentrl.rollout.curation.outcomes import RolloutSummary

    result = RolloutSummary(sample=0, reward=1.0, tokens=1, turns=1, version=0)
    return PoolState(successes={"t0": (PooledSuccess(group="0/0", result=result),)})


# What the gate does for it


def plain(mode: Mode, tasks: Sequence[Task], *, per_step: int, **keys: Any) -> RolloutScheduler:
    left = list(tasks)

    def take(count: int) -> list[Task]:
        taken, left[:] = left[:count], left[count:]
        return taken

    rollouts = RolloutRunner(
        make_env=Endless if "segment" in keys else Graded,
        engine=ScriptedEngine(reply if "segment" not in keys else lambda request: (1, END)),
        chat=LetterChat(),
        limits=EpisodeLimits(context_tokens=64, max_turns=4),
    )
    return rollouts.scheduler(
        SchedulerPolicy(mode=mode, groups_per_step=per_step, group_size=2, **keys),
        take,
        sampling=Sampling(),
        seed=lambda number, task, sample: derive(number, task.id, sample),
    )


FIVE = [Task(prompt=f"task {i}", id=f"t{i}") for i in range(5)]


@pytest.mark.parametrize("mode", MODES)
async def test_tasks_that_run_out_end_a_batch_and_then_the_run(mode: Mode) -> None:
    gate = plain(mode, FIVE, per_step=3)
    async with asyncio.timeout(30), gate:
        for version, size in enumerate((3, 2), 1):
            assert len((await gate.next_batch()).trees) == size
            await gate.load_weights(None, version)
        with pytest.raises(OutOfTasks, match=r"no more tasks.*rollout\.tasks_per_step"):
            await gate.next_batch()


@pytest.mark.parametrize("mode", ["partial", "async"])
async def test_tasks_that_run_out_let_parked_trajectories_go_on(mode: Mode) -> None:
    segment = SegmentBudget(tokens=100, turns=1, segments=9)
    gate = plain(mode, FIVE[:2], per_step=3, segment=segment)
    async with asyncio.timeout(30), gate:
        assert len((await gate.next_batch()).trees) == 2


async def test_a_task_may_come_twice_in_one_collect() -> None:
    engine = ScriptedEngine(reply)
    rollouts = RolloutRunner(make_env=Graded, engine=engine, chat=LetterChat(), concurrency=3)
    twice = [FIVE[0], FIVE[1], FIVE[0], FIVE[0]]
    trees = await rollouts.collect(twice, group_size=2, seed=7, sampling=Sampling())
    assert [tree.task.id for tree in trees] == ["t0", "t1", "t0", "t0"]
    assert all(len(tree.leaves) == 2 for tree in trees)
    seeds = {request.seed for request in engine.requests}
    assert len(seeds) == 8
    assert {derive(7, name, sample) for name in ("t0", "t1") for sample in (0, 1)} < seeds


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from("ab")), max_size=12), st.randoms())
def test_repeats_are_told_apart_however_often_they_are_asked(
    groups: list[tuple[int, str]], random: Random
) -> None:
    """First asked in their order, then again in any order: the same, and never one twice."""
    repeats = SeedRepeats()
    first = [repeats.find_repeat(i, task, step=step) for i, (step, task) in enumerate(groups)]
    named = [(step, task, again) for (step, task), again in zip(groups, first, strict=True)]
    assert len({*named}) == len(named)
    for i, (step, task) in enumerate(groups):
        assert (first[i] == ()) == ((step, task) not in groups[:i])
    for i in random.sample(range(len(groups)), len(groups)):
        step, task = groups[i]
        assert repeats.find_repeat(i, task, step=step) == first[i]


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3)), min_size=1, max_size=5),
    st.sets(st.integers(0, 30)),
    st.randoms(),
)
def test_groups_of_any_size_may_grow_once(
    groups: list[tuple[int, int]], failing: set[int], random: Random
) -> None:
    """Random ends: each group trains on its own number and what it grew by, less its failures."""
    ledger = RolloutQueue(
        SchedulerPolicy(groups_per_step=len(groups), group_size=9, retries=0, concurrency=5)
    )
    ledger.wait_for_batch()
    orders = [GroupRequest(task=FIVE[0], trajectories=size) for size, _ in groups]
    opened = ledger.open_groups([0] * len(groups), orders)
    grown, live, count = set[int](), list[Any](), 0
    while True:
        while (member := ledger.start_next()) is not None:
            live.append(member)
        if not live:
            break
        member = live.pop(random.randrange(len(live)))
        bad = count in failing
        count += 1
        outcome = Failed("env", "x") if bad else Finished(1.0)
        end = ledger.end_rollout(member, Leaf(node=None, outcome=outcome, sample=member.sample))
        if end.group == "open":
            continue
        group = opened[member.group]
        more = 0 if member.group in grown else groups[member.group][1]
        grown.add(member.group)
        if not ledger.grow(group, more):
            ledger.accept(group)
    assert count == sum(size + more for size, more in groups)
    assert len(ledger.take()) == len(groups)
    for group, (size, more) in zip(opened, groups, strict=True):
        assert group.state.target == group.state.started == size + more
        assert len(group.leaves) == size + more
    assert (ledger.state.live, ledger.state.queued, ledger.state.open) == (0, 0, 0)


def test_a_small_group_needs_no_more_valid_ones_than_it_has() -> None:
    ledger = RolloutQueue(SchedulerPolicy(groups_per_step=1, group_size=4, min_valid=3, retries=0))
    (group,) = ledger.open_groups([0], [GroupRequest(task=FIVE[0], trajectories=2)])
    ends = list[str]()
    while (member := ledger.start_next()) is not None:
        leaf = Leaf(node=None, outcome=Finished(1.0), sample=member.sample)
        ends.append(ledger.end_rollout(member, leaf).group)
    assert ends == ["open", "ready"]
    assert group.state == GroupProgress(number=0, target=2, started=2, valid=2)
