"""Curation of groups that a record kept: rules, second phases and turns after a kill.

Virtual time; the real gate, episodes, store and rules. Every process begins from no checkpoint.
Mutants seen caught: a second phase that is not recorded; the first part of a turn forgotten.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from agentrl.engine.scripted import ScriptedEngine
from agentrl.events.kinds import GroupDropped, GroupRequest, GroupResized, GroupsTrained
from agentrl.policy import GenerateRequest, Sampling
from agentrl.rollout.curation.allocation import DarsAllocator
from agentrl.rollout.curation.dapo import DynamicSamplingFilter
from agentrl.rollout.curation.duet import DuetAllocator
from agentrl.rollout.curation.group_curation import GroupCuration
from agentrl.rollout.curation.rules import CurationRules
from agentrl.rollout.curation.sampling import UniformTaskSampler
from agentrl.rollout.curation.task_curator import CuratedBatch, TaskCurator
from agentrl.rollout.curation.vade import VadeTaskSampler
from agentrl.rollout.curation.xrpo import XrpoAllocator
from agentrl.rollout.episode import EpisodeLimits
from agentrl.rollout.runner import RolloutRunner
from agentrl.rollout.scheduler.policy import Mode, SchedulerPolicy
from agentrl.rollout.scheduler.scheduler import RolloutScheduler
from agentrl.rollout.task_sampler import TaskSampler
from agentrl.runtime.seeds import derive
from agentrl.simulate.clock import run_virtual
from agentrl.store.reader import StoreReader
from agentrl.store.run import RunStore
from agentrl.store.settings import StoreSettings
from agentrl.trajectory import Tree, reward_of
from tests.support.dying import Dying
from tests.support.examples import examples
from tests.unit.rollout.curation.test_gate import Endless, kind, rewards
from tests.unit.rollout.curation.test_step import END, Graded, LetterChat, reply

SIZE = 4


def rest_of_turn(request: GenerateRequest, reply: Sequence[int]) -> Sequence[int]:
    """Return what a prompt's last turn lacks of a reply, as an engine that has just begun would."""
    turn = request.prompt[::-1].index(LetterChat().turn)
    said = request.prompt[len(request.prompt) - turn :]
    done = int(request.id.rsplit("/", 1)[1])
    assert (done, said) == (turn, tuple(reply[:turn])), f"{request.id} does not go on from {said}"
    return reply[turn:]


@dataclass
class Process(Dying):
    """One process of a curated run."""

    folder: Path
    rules: CurationRules
    mode: Mode = "sync"
    wanted: int = 2
    speak: Callable[[GenerateRequest], Sequence[int]] = reply
    env: Callable[[], Any] = Graded
    max_turns: int | None = None
    """Of every order, where it is not the run's."""
    version: int = 0
    record: RunStore = field(init=False)
    curation: GroupCuration = field(init=False)

    def __post_init__(self) -> None:
        place = self.folder / "store"
        stream = TaskSampler(Graded(), seed=0, limit=None)
        self.record = RunStore.open(
            place,
            StoreSettings(),
            seed=0,
            position=lambda: stream.position,
            resume=place.exists(),
        )
        stream.skip(self.record.restore({}, step=0) or 0)
        known = stream if self.rules.sampler is None else TaskSampler(Graded(), seed=0, limit=9)
        curator = TaskCurator(self.rules, known, seed=0, group_size=SIZE, max_turns=8)
        self.curation = GroupCuration(curator=curator, wanted=self.wanted)

    def orders(self, count: int) -> list[GroupRequest]:
        return [
            replace(order, max_turns=self.max_turns or order.max_turns)
            for order in self.curation.tasks(count)
        ]

    def gate(self) -> RolloutScheduler:
        rollouts = RolloutRunner(
            make_env=self.env,
            engine=ScriptedEngine(
                lambda asked: rest_of_turn(asked, self.speak(asked)), token_s=1.0
            ),
            chat=LetterChat(),
            limits=EpisodeLimits(context_tokens=64),
            retries=0,
        )
        gate = rollouts.scheduler(
            SchedulerPolicy(
                mode=self.mode,
                groups_per_step=self.wanted,
                group_size=SIZE,
                over_provision=1.5 if self.mode == "partial" else 1.0,
                retries=0,
                concurrency=6,
            ),
            self.orders,
            sampling=Sampling(),
            seed=lambda number, task, sample: derive(number, task.id, sample),
            hooks=self.curation.hooks,
            events=self.record.events,
            first_group=self.record.next_group or 0,
        )
        self.curation.flying = gate.list_unfinished
        self.curation.keep(self.record.groups)
        gate.adopt(self.record.groups)
        return gate

    async def step(self, gate: RolloutScheduler) -> CuratedBatch:
        batch = await gate.next_batch()
        curated = self.curation.batch(batch.trees)
        self.version += 1
        numbers = tuple(group.state.number for group in batch.groups)
        gate.events.emit(GroupsTrained(groups=numbers, step=self.version))
        self.curation.version = self.version
        await gate.load_weights(None, self.version)
        return curated

    async def steps(self, count: int) -> list[CuratedBatch]:
        with self.record:
            async with self.gate() as gate:
                return [await self.step(gate) for _ in range(count)]


def late(request: GenerateRequest) -> Sequence[int]:
    """Say what is wrong but for sample 5, which only a second phase begins."""
    sample = request.id.split("/")[2]
    return (*map(ord, "yes" if sample == "5" else "no"), END)


GROWING = CurationRules(
    allocation=DarsAllocator(max_trajectories=6), filter=DynamicSamplingFilter()
)


@pytest.mark.parametrize("seconds", [2.5, 3.5, 5.5, 6.5])
def test_a_second_phase_goes_on_and_is_not_had_twice(tmp_path: Path, seconds: float) -> None:
    """3 s a trajectory, 6 at once: the first group has its second phase from 3 s or 6 s on."""
    run_virtual(Process(tmp_path, GROWING, speak=late).live_for(seconds))
    process = Process(tmp_path, GROWING, speak=late)
    sizes = {group.id: (group.opened.size, group.size) for group in process.record.groups}
    assert set(sizes.values()) <= {(4, 4), (4, 6)}
    (curated,) = run_virtual(process.steps(1))
    for tree in curated.trees:
        assert sorted(leaf.sample for leaf in tree.leaves) == list(range(6))
        assert rewards(tree).count(1.0) == 1
    with StoreReader(tmp_path / "store") as reader:
        events = [event for _, event in reader.events()]
    grown = [event.group for event in events if isinstance(event, GroupResized)]
    assert sorted(grown) == sorted({*grown}), "each once"
    assert not [event for event in events if isinstance(event, GroupDropped)]


def test_a_second_phase_that_had_ended_is_not_asked_for_again(tmp_path: Path) -> None:
    """Rules that would give any group more: its size on record says that it has had it."""
    always = CurationRules(allocation=DarsAllocator(form="hardness", max_trajectories=6))
    run_virtual(Process(tmp_path, always, speak=late, wanted=1).live_for(4))
    process = Process(tmp_path, always, speak=late, wanted=1)
    (kept,) = process.record.groups
    assert (kept.opened.size, kept.size) == (4, 6)
    larger = CurationRules(allocation=DarsAllocator(form="hardness", max_trajectories=20))
    process.curation.curator.rules = larger
    (curated,) = run_virtual(process.steps(1))
    (tree,) = curated.trees
    assert len(tree.leaves) == 6


def test_turns_of_an_order_hold_after_a_kill(tmp_path: Path) -> None:
    """Worlds that never end: only the order's 3 turns stop a trajectory, and the run's are 8."""

    def word(request: GenerateRequest) -> Sequence[int]:
        return (1, END)

    first = Process(tmp_path, CurationRules(), speak=word, env=Endless, max_turns=3)
    run_virtual(first.live_for(3))
    process = Process(tmp_path, CurationRules(), speak=word, env=Endless)
    assert {group.request.max_turns for group in process.record.groups} == {3}
    assert process.record.turns > 0
    (curated,) = run_virtual(process.steps(1))
    for tree in curated.trees:
        assert [len(leaf.turn_rewards) for leaf in tree.leaves] == [3] * SIZE


REWARDS = {"wrong": [0.0] * SIZE, "right": [1.0] * SIZE, "mixed": [1.0, 0.0, 1.0, None]}
"""By sample, of each kind of group; None for a trajectory that fails."""
FILTERED = DynamicSamplingFilter(max_refills=3)
SAMPLED = {
    "stream": CurationRules(filter=FILTERED),
    "revisit": CurationRules(sampler=UniformTaskSampler(), revisit_every=2, filter=FILTERED),
    "vade": CurationRules(
        sampler=VadeTaskSampler(), filter=FILTERED, allocation=DarsAllocator(max_trajectories=6)
    ),
    "xrpo": CurationRules(allocation=XrpoAllocator(first_round=2)),
    "duet": CurationRules(sampler=UniformTaskSampler(), allocation=DuetAllocator(first_round=2)),
}


@pytest.mark.parametrize("name", SAMPLED)
@settings(
    max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(lives=st.lists(st.floats(0.5, 40), min_size=1, max_size=3))
def test_wherever_a_sync_run_is_killed_it_draws_and_learns_the_same(
    tmp_path_factory: pytest.TempPathFactory, name: str, lives: list[float]
) -> None:
    """Mutants seen caught: drawn tasks or rounds of the step forgotten; a dropped group not learnt
    from again; a round that was cut short drawn anew."""
    folder = tmp_path_factory.mktemp("killed")
    for seconds in lives:
        run_virtual(Process(folder, SAMPLED[name]).live_for(seconds))
    assert ending(folder, name) == whole_ending(name)


def ending(folder: Path, name: str) -> tuple[Any, ...]:
    process = Process(folder, SAMPLED[name])
    found = run_virtual(process.steps(3))
    drawn = [[(tree.task.id, rewards(tree)) for tree in one.trees] for one in found]
    state = process.curation.curator.state
    # Of the stream, a killed run may have begun tasks of a later step, which wait for it.
    return drawn, [one.figures for one in found], replace(state, position=0, groups=0)


@cache
def whole_ending(name: str) -> tuple[Any, ...]:
    with TemporaryDirectory() as folder:
        return ending(Path(folder), name)


@settings(
    max_examples=examples(15),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
)
@given(
    mode=st.sampled_from(["sync", "partial", "async"]),
    lives=st.lists(st.floats(0.5, 30), min_size=1, max_size=5),
)
@example(mode="async", lives=[7.038658478702717, 12.0])  # killed with parts of turns on record
@example(mode="async", lives=[7.038658478702717, 6.0])
def test_whenever_it_is_killed_only_groups_that_can_teach_train(
    tmp_path_factory: pytest.TempPathFactory, mode: Mode, lives: list[float]
) -> None:
    """Groups all right or all wrong are dropped, restored ones too, and others take their place."""
    folder = tmp_path_factory.mktemp("killed")
    rules = CurationRules(filter=DynamicSamplingFilter(max_refills=20))
    for seconds in lives:
        run_virtual(Process(folder, rules, mode).live_for(seconds))
    process = Process(folder, rules, mode)
    restored = {group.id for group in process.record.groups}
    found = run_virtual(process.steps(3))
    trees: list[Tree] = [tree for curated in found for tree in curated.trees]
    assert len(trees) == 6
    assert {kind(tree) for tree in trees} == {"mixed"}
    for tree in trees:
        assert sorted(leaf.sample for leaf in tree.leaves) == list(range(SIZE))
    with StoreReader(folder / "store") as reader:
        states = {number: reader.state(number) for number in reader.groups()}
        dropped = {e.group for _, e in reader.events() if isinstance(e, GroupDropped)}
        recorded = {number: reader.group(number).tree for number in states}
    for tree in (*trees, *recorded.values()):
        for leaf in tree.leaves:
            assert reward_of(leaf.outcome) == REWARDS[kind(tree)][leaf.sample]
    kinds = {number: kind(tree) for number, tree in recorded.items()}
    for number, state in states.items():
        if state == "trained":
            assert kinds[number] == "mixed"
        if number in dropped:
            assert kinds[number] != "mixed"
    assert all(states[number] in ("trained", "dropped", "open", "complete") for number in restored)
    assert sum(curated.figures["curation/kept"] for curated in found) >= 6
