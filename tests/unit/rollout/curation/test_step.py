"""A step of curation: refills, second phases, loans, costs, resuming.

Mutants seen caught: an exhausted sampler asked again; loans observed, unmarked, beside the
trajectory they replace, or counted as trained;
failures counted as trained; a second phase asked twice or with the first one's samples; a batch in
order of arrival; tasks in flight drawn.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.engine.scripted import ScriptedEngine
from agentrl.env import Action, BaseEnv, Env, Info, Observation, Step
from agentrl.policy import GenerateRequest, Sampling
from agentrl.rollout.curation.allocation import DarsAllocator, DartAllocator
from agentrl.rollout.curation.cdas import CdasTaskSampler
from agentrl.rollout.curation.curator import CurationState
from agentrl.rollout.curation.dapo import DynamicSamplingFilter, NothingToLearn, verdict
from agentrl.rollout.curation.group_curation import GroupCuration
from agentrl.rollout.curation.outcomes import GroupOutcome, RolloutSummary, result_of
from agentrl.rollout.curation.rules import CurationRules
from agentrl.rollout.curation.sampling import UniformTaskSampler
from agentrl.rollout.curation.state_json import decode, encode
from agentrl.rollout.curation.steps import HighEntropySteps
from agentrl.rollout.curation.success_pool import SuccessPool
from agentrl.rollout.curation.task_curator import CuratedBatch, TaskCurator
from agentrl.rollout.curation.vade import VadeState, VadeTaskSampler
from agentrl.rollout.episode import EpisodeLimits
from agentrl.rollout.runner import RolloutRunner
from agentrl.rollout.scheduler.policy import SchedulerPolicy
from agentrl.rollout.scheduler.topology import GroupProgress, RolloutHooks, RolloutKey
from agentrl.rollout.task_sampler import TaskSampler
from agentrl.runtime.seeds import derive
from agentrl.store.trajectory_copy import AGE
from agentrl.task import Split, Task
from agentrl.trajectory import Finished, Leaf, Tree, reward_of
from benchmarks.letters import END, LetterChat
from tests.support.curating import Score, curator, filled, play_step, tokens_of


def by_number(step: int, task: str, sample: int) -> float | None:
    """Tasks 0, 3, ... are all wrong, 1, 4, ... all right, 2, 5, ... mixed."""
    return (0.0, 1.0, float(sample % 2))[int(task[1:]) % 3]


def ids(curated: CuratedBatch) -> list[str]:
    return [tree.task.id for tree in curated.trees]


# Dynamic sampling


def test_dropped_groups_are_replaced_until_the_batch_is_full() -> None:
    curated, log = play_step(curator(CurationRules(filter=DynamicSamplingFilter())), 3, by_number)
    assert ids(curated) == ["t2", "t5", "t8"]
    assert [a.task.id for a in log.asks] == [f"t{i}" for i in range(9)]
    assert {k: v for k, v in curated.figures.items() if v and "token" not in k} == {
        "curation/kept": 3,
        "curation/dropped_all_right": 3,
        "curation/dropped_all_wrong": 3,
        "curation/rounds": 5,
        "curation/trajectories_asked": 36,
        "curation/trajectories_max": 4,
    }
    trained = sum(tokens_of(t, s) for t in ids(curated) for s in range(4))
    wasted = sum(tokens_of(f"t{i}", s) for i in range(9) for s in range(4)) - trained
    assert curated.figures["curation/tokens_wasted"] == wasted
    assert curated.figures["curation/tokens_wasted_fraction"] == wasted / (wasted + trained)


def test_without_a_filter_everything_is_kept_in_one_round() -> None:
    curated, log = play_step(curator(CurationRules()), 3, lambda step, task, sample: None)
    assert (ids(curated), log.rounds) == (["t0", "t1", "t2"], 1)


scores = st.sampled_from([0.0, 1.0, 0.5, None])


@given(
    st.lists(scores, min_size=40, max_size=40),
    st.integers(1, 6),
    st.integers(0, 4),
    st.integers(0, 2**32),
)
def test_no_token_and_no_group_is_lost_or_counted_twice(
    pattern: list[float | None],
    wanted: int,
    refills: int,
    order: int,
) -> None:
    rule = DynamicSamplingFilter(max_refills=refills)
    who = curator(CurationRules(filter=rule, pool=SuccessPool()), tasks=9)
    random, sampled, trained, wasted = Random(order), 0, 0, 0.0
    score: Score = lambda step, task, sample: pattern[(7 * step + 3 * int(task[1:]) + sample) % 40]  # noqa: E731
    for _ in range(4):
        try:
            curated, log = play_step(who, wanted, score, random=random)
        except NothingToLearn:
            return
        sampled += sum(
            tokens_of(a.task.id, a.first_sample + i)
            for a in log.asks
            for i in range(a.trajectories)
        )
        trained += sum(
            len(node.token_ids)
            for tree in curated.trees
            for leaf in tree.leaves
            if reward_of(leaf.outcome) is not None and AGE not in leaf.components
            for node in (tree.path(leaf.node) if leaf.node is not None else ())
            if node.source == "sampled"
        )
        wasted += curated.figures["curation/tokens_wasted"]
        assert sampled == trained + wasted
        assert 1 <= len(curated.trees) <= wanted
        keys = [tree.task.id for tree in curated.trees]
        assert len(curated.trees) == len({id(tree) for tree in curated.trees}) == len(keys)


@given(st.integers(0, 2**32), st.integers(0, 2**32))
def test_the_order_within_a_round_changes_nothing_that_is_kept(one: int, other: int) -> None:
    def states(order: int) -> tuple[CurationState, list[list[str]], list[Mapping[str, float]]]:
        rules = CurationRules(
            sampler=VadeTaskSampler(), filter=DynamicSamplingFilter(), pool=SuccessPool()
        )
        who, random = curator(rules), Random(order)
        played = [play_step(who, 3, by_number, random=random)[0] for _ in range(4)]
        return who.state, [ids(c) for c in played], [c.figures for c in played]

    assert states(one) == states(other)


# Allocation


def test_dars_grows_hard_groups_once_and_within_its_limit() -> None:
    rules = CurationRules(allocation=DarsAllocator())
    rate = {"t0": 0, "t1": 1, "t2": 4}
    score: Score = lambda step, task, sample: float(sample % 8 < rate[task])  # noqa: E731
    curated, log = play_step(curator(rules, group_size=8), 3, score)
    asked = {(a.task.id, a.first_sample): a.trajectories for a in log.asks}
    assert asked == {("t0", 0): 8, ("t1", 0): 8, ("t2", 0): 8, ("t0", 8): 24, ("t1", 8): 11}
    assert [len(tree.leaves) for tree in curated.trees] == [32, 19, 8]
    assert [sorted(leaf.sample for leaf in tree.leaves) for tree in curated.trees] == [
        [*range(32)],
        [*range(19)],
        [*range(8)],
    ]
    assert curated.figures["curation/trajectories_asked"] == 59
    assert curated.figures["curation/trajectories_extra"] == 35


def test_dart_learns_from_a_tasks_own_past() -> None:
    rules = CurationRules(allocation=DartAllocator(length_slack=1.5))
    who = curator(rules, tasks=2, group_size=8)
    score: Score = lambda step, task, sample: float(task == "t0" or sample == 0)  # noqa: E731
    play_step(who, 2, score)
    _, log = play_step(who, 2, score)
    assert {a.task.id: (a.trajectories, a.max_turns) for a in log.asks} == {
        "t0": (2, 2),
        "t1": (8, 2),
    }


# Loans


def by_step(step: int, task: str, sample: int) -> float | None:
    return float(step == 0 and sample == 1)


def test_a_group_without_success_is_lent_an_old_one_and_says_so() -> None:
    who = curator(
        CurationRules(filter=DynamicSamplingFilter(), pool=SuccessPool(max_age=3)), tasks=2
    )
    play_step(who, 2, by_step, version=0)
    curated, _ = play_step(who, 2, by_step, version=3)
    assert [(loan.ref, loan.age, loan.result.sample) for loan in curated.loans] == [
        (f"0/{tree.task.id[1:]}/1", 3, 0) for tree in curated.trees
    ]
    for tree in curated.trees:
        assert [t.sample for t in tree.trajectories()] == [0, 1, 2, 3]
        lent, *own = tree.trajectories()
        assert (lent.outcome, {v for v in lent.versions if v >= 0}) == (Finished(1.0), {0})
        assert len(lent.token_ids) == 1 + tokens_of(tree.task.id, 1)
        assert all({v for v in t.versions if v >= 0} == {3} for t in own)
        assert [leaf.components for leaf in tree.leaves if leaf.sample == 0] == [{AGE: 3.0}]
        assert all(not leaf.components for leaf in tree.leaves if leaf.sample != 0)
    assert curated.figures["curation/loans"] == 2
    assert curated.figures["curation/loan_age_max"] == 3
    replaced = sum(tokens_of(f"t{i}", 0) for i in range(2))
    assert curated.figures["curation/tokens_wasted"] == replaced


def test_a_success_too_old_is_not_lent() -> None:
    who = curator(
        CurationRules(filter=DynamicSamplingFilter(), pool=SuccessPool(max_age=3)), tasks=2
    )
    play_step(who, 2, by_step, version=0)
    with pytest.raises(NothingToLearn, match=r"^step 2 dropped 20 groups that cannot train"):
        play_step(who, 2, by_step, version=4)


def test_a_lent_success_is_no_observation() -> None:
    rules = CurationRules(
        sampler=CdasTaskSampler(), filter=DynamicSamplingFilter(), pool=SuccessPool()
    )
    lending, alone = curator(rules, tasks=2), curator(replace(rules, pool=None), tasks=2)
    for who in (lending, alone):
        play_step(who, 2, by_step)
    play_step(lending, 2, by_step)
    with pytest.raises(NothingToLearn):
        play_step(alone, 2, by_step)
    known = lending.state.sampler
    assert known == rules.sampler.observe(  # pyright: ignore[reportOptionalMemberAccess]
        alone.state.sampler,
        [
            GroupOutcome(
                step=1,
                ordinal=i,
                task_id=f"t{i}",
                asked=4,
                results=tuple(
                    RolloutSummary(sample=s, reward=0.0, tokens=1, turns=1, version=1)
                    for s in range(4)
                ),
            )
            for i in range(2)
        ],
        tasks=2,
    )


def test_only_what_the_pool_names_stays_in_memory() -> None:
    who = curator(CurationRules(pool=SuccessPool(per_task=1)), tasks=3)
    for _ in range(4):
        play_step(who, 3, by_number)
        assert who.branches.keys() == who.state.pool.refs
        assert len(who.branches) == 2


# Steps of high entropy


def test_turn_weights_come_with_the_batch() -> None:
    curated, _ = play_step(curator(CurationRules(steps=HighEntropySteps(keep=0.5))), 1, by_number)
    assert curated.weights is not None
    assert dict(curated.weights[0]) == {0: {0: 0.0}, 1: {0: 0.0}, 2: {0: 1.0}, 3: {0: 1.0}}
    assert play_step(curator(CurationRules()), 1, by_number)[0].weights is None


# Resuming


EVERYTHING = CurationRules(
    sampler=CdasTaskSampler(),
    allocation=DartAllocator(),
    filter=DynamicSamplingFilter(),
    pool=SuccessPool(),
    revisit_every=4,
)


@pytest.mark.parametrize(
    "rules",
    [
        EVERYTHING,
        CurationRules(filter=DynamicSamplingFilter(max_refills=2)),
        CurationRules(
            sampler=VadeTaskSampler(),
            allocation=DarsAllocator(),
            filter=DynamicSamplingFilter(),
            pool=SuccessPool(),
        ),
        CurationRules(sampler=UniformTaskSampler(), pool=SuccessPool(per_task=1, max_uses=1)),
    ],
)
def test_a_run_resumed_after_every_step_is_the_same_play_step(rules: CurationRules) -> None:
    def score(step: int, task: str, sample: int) -> float | None:
        return (0.0, 1.0, 0.0, None, 0.5)[(5 * step + int(task[1:]) * 3 + sample * sample) % 5]

    def played(resume: bool) -> list[object]:
        who, seen = curator(rules, tasks=20), list[object]()
        for step in range(8):
            curated, log = play_step(who, 3, score, random=Random(step))
            asked = [(a.task.id, a.first_sample, a.trajectories, a.max_turns) for a in log.asks]
            leaves = [[(x.sample, x.outcome) for x in tree.leaves] for tree in curated.trees]
            seen.append((asked, leaves, curated.figures, curated.loans, who.state))
            if resume:
                state = decode(CurationState, json.loads(json.dumps(encode(who.state))))
                who = curator(rules, tasks=20, state=state, branches=who.branches)
        return seen

    assert played(resume=True) == played(resume=False)


# With the pool of rollouts and a scripted engine


class Graded(BaseEnv):
    """Pays for `yes`, breaks at `bug`; every third task is always right, every third never."""

    def tasks(self, split: Split, *, seed: int = 0) -> Iterable[Task]:
        for i in range(30):
            yield Task(prompt=f"task {i}", id=f"t{i}", split=split)

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        assert options is not None
        return Observation(options["task"].messages, tools=()), {}

    async def step(self, action: Action) -> Step:
        if action.text == "bug":
            raise OSError("the disk is gone")
        return Observation(()), float(action.text == "yes"), True, False, {}


def reply(request: GenerateRequest) -> Sequence[int]:
    task, _, sample, _, _ = request.id.split("/")
    number, index = int(task[1:]), int(sample)
    if number % 3 == 2 and index == 3:
        return (*map(ord, "bug"), END)
    good = (False, True, index % 2 == 0)[number % 3]
    return (*map(ord, "yes" if good else "no"), END)


def scripted() -> RolloutRunner:
    return RolloutRunner(
        make_env=Graded,
        engine=ScriptedEngine(reply),
        chat=LetterChat(),
        limits=EpisodeLimits(context_tokens=64),
        retries=0,
    )


def graded_tasks() -> TaskSampler:
    env: Env = Graded()
    return TaskSampler(env, seed=0, limit=20)


async def test_the_gate_replaces_what_dynamic_sampling_drops() -> None:
    trees: dict[int, Tree] = {}
    verdicts: dict[str, str] = {}

    def on_finished(attempt: RolloutKey, tree: Tree, leaf: Leaf) -> None:
        trees[attempt.group] = tree

    def on_group(state: GroupProgress, leaves: Sequence[Leaf]) -> bool:
        tree = trees[state.number]
        group = GroupOutcome(
            step=0,
            ordinal=state.number,
            task_id=tree.task.id,
            asked=state.target,
            results=tuple(result_of(tree, leaf) for leaf in leaves),
        )
        verdicts[tree.task.id] = verdict(group, DynamicSamplingFilter())
        return verdicts[tree.task.id] == "kept"

    gate = scripted().scheduler(
        SchedulerPolicy(mode="sync", groups_per_step=3, group_size=4, retries=0),
        graded_tasks().take,
        sampling=Sampling(),
        seed=lambda number, task, sample: derive(number, task.id, sample),
        hooks=RolloutHooks(on_finished=on_finished, on_group=on_group),
    )
    async with gate:
        batch = await gate.next_batch()
    assert {tree.task.id for tree in batch.trees} == {"t2", "t5", "t8"}
    names = ("all_wrong", "all_right", "kept")
    assert verdicts == {f"t{i}": names[i % 3] for i in range(9)}


def late(request: GenerateRequest) -> Sequence[int]:
    """As `reply`, and what is never right was right for sample 1 under version 0."""
    task, _, sample, _, _ = request.id.split("/")
    if int(task[1:]) % 3 == 0 and sample == "1" and not loaded:
        return (*map(ord, "yes"), END)
    return reply(request)


loaded: list[int] = []


@pytest.mark.parametrize("mode", ["sync", "partial", "async"])
async def test_curation_behind_the_gate(mode: Any) -> None:
    loaded.clear()
    rules = CurationRules(
        sampler=VadeTaskSampler(), filter=DynamicSamplingFilter(), pool=SuccessPool()
    )
    who = TaskCurator(rules, graded_tasks(), seed=0, group_size=4, max_turns=8)
    curation = GroupCuration(curator=who, wanted=4)
    gate = replace(scripted(), engine=ScriptedEngine(late)).scheduler(
        SchedulerPolicy(mode=mode, groups_per_step=4, group_size=4, retries=0, concurrency=32),
        curation.tasks,
        sampling=Sampling(),
        seed=lambda number, task, sample: derive(number, task.id, sample),
        hooks=curation.hooks,
    )
    curation.flying = gate.list_unfinished
    lent = 0
    async with gate:
        for version in range(1, 9):
            batch = await gate.next_batch()
            curated = curation.batch(batch.trees)
            assert len(curated.trees) == 4
            for tree in curated.trees:
                rewards = {reward_of(leaf.outcome) for leaf in tree.leaves} - {None}
                assert rewards == {0.0, 1.0}
                assert len(tree.leaves) == 4
            marked = [x for t in curated.trees for x in t.leaves if AGE in x.components]
            assert sorted(x.components[AGE] for x in marked) == sorted(
                loan.age for loan in curated.loans
            )
            lent += len(marked)
            loaded.append(version)
            curation.version = version
            await gate.load_weights(None, version)
            assert decode(CurationState, json.loads(json.dumps(encode(who.state)))) == who.state
    assert lent
    assert who.state.steps == 8
    known = who.state.sampler
    assert isinstance(known, VadeState)
    assert known.evidence["t1"].misses == 0


async def test_behind_the_gate_a_step_that_teaches_nothing_stops_the_play_step() -> None:
    rules = CurationRules(filter=DynamicSamplingFilter(max_refills=1, min_spread=0.9, short="stop"))
    who = TaskCurator(rules, graded_tasks(), seed=0, group_size=4, max_turns=8)
    curation = GroupCuration(curator=who, wanted=3)
    gate = scripted().scheduler(
        SchedulerPolicy(groups_per_step=3, group_size=4, retries=0),
        curation.tasks,
        sampling=Sampling(),
        seed=lambda number, task, sample: derive(number, task.id, sample),
        hooks=curation.hooks,
    )
    async with gate:
        with pytest.raises(NothingToLearn, match=r"6 groups.*needs 3.*max_refills"):
            await gate.next_batch()


def test_a_group_begun_again_behind_the_gate_counts_once_in_its_step() -> None:
    who = curator(CurationRules(filter=DynamicSamplingFilter()), group_size=2)
    curation = GroupCuration(curator=who, wanted=1)
    (order,) = curation.tasks(1)
    kept: list[bool] = []
    scores: tuple[Score, ...] = (lambda s, t, i: 1.0, lambda s, t, i: float(i))
    for score in scores:
        tree = filled(Tree(order.task), 2, 0, 0, score)
        for leaf in tree.leaves:
            curation.hooks.on_finished(RolloutKey(group=0, sample=leaf.sample), tree, leaf)
        state = GroupProgress(number=0, target=2, started=2, live=0, valid=2, failed=0)
        kept.append(curation.hooks.on_group(state, tree.leaves))
    assert kept == [False, True]
    figures = curation.batch([]).figures
    assert (figures["curation/kept"], figures["curation/dropped_all_right"]) == (1, 0)
    assert curation.batch([]).figures["curation/kept"] == 0


def test_a_loan_waits_with_its_group_behind_the_gate() -> None:
    rules = CurationRules(filter=DynamicSamplingFilter(), pool=SuccessPool(max_uses=1))
    curation = GroupCuration(curator=curator(rules, tasks=1, group_size=2), wanted=1)
    scores: tuple[Score, ...] = (lambda s, t, i: float(i), lambda s, t, i: 0.0)
    tree = Tree(Task(prompt="none yet"))
    for number, score in enumerate(scores):
        (order,) = curation.tasks(1)
        curation.flying = lambda order=order: [order.task]
        tree = filled(Tree(order.task), 2, number, number, score)
        curation.hooks.on_finished(RolloutKey(group=number, sample=0), tree, tree.leaves[0])
        assert curation.hooks.on_group(GroupProgress(number=number, target=2), tree.leaves)
        curation.version = number + 1
        assert not curation.batch([]).loans
        curation.flying = tuple
    assert not curation.curator.state.pool.refs
    curated = curation.batch([tree])
    assert [loan.ref for loan in curated.loans] == ["0/0/1"]
    assert {reward_of(leaf.outcome) for leaf in curated.trees[0].leaves} == {0.0, 1.0}


def drawn(curation: GroupCuration, count: int) -> list[Task]:
    return [order.task for order in curation.tasks(count)]


def test_behind_the_gate_tasks_in_flight_are_not_drawn_and_old_ones_only_at_need() -> None:
    who = curator(CurationRules(sampler=UniformTaskSampler()), tasks=30)
    curation = GroupCuration(curator=who, wanted=2)
    first = drawn(curation, 15)
    curation.flying = lambda: first[:1]
    second = drawn(curation, 15)
    assert not {t.id for t in first} & {t.id for t in second}
    third = drawn(curation, 20)
    assert len({t.id for t in third}) == 20
    assert first[0].id not in {t.id for t in third}
    curation.batch([])
    assert first[0].id not in {t.id for t in drawn(curation, 29)}
