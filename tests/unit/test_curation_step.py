"""A step of curation: refills, second phases, loans, what waits, what it costs, how it resumes.

Mutants seen caught: a batch not cut; running groups not counted; an exhausted sampler asked
again; carried groups forgotten, or a version too old; groups that end in another step; loans
observed, unmarked, beside the trajectory they replace, carried on, or counted as trained;
failures counted as trained; a second phase asked twice or with the first one's samples; busy
tasks drawn; a batch in order of arrival; tasks in flight drawn behind the gate.
"""

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.engine.scripted import ScriptedEngine
from agentrl.env import Action, BaseEnv, Env, Info, Observation, Step
from agentrl.errors import ConfigError
from agentrl.policy import GenerateRequest, Sampling
from agentrl.rollout.curation.allocation import DarsAllocator, DartAllocator
from agentrl.rollout.curation.cdas import CdasTaskSampler
from agentrl.rollout.curation.collection import JudgedGroup, StepCollection, ended, started
from agentrl.rollout.curation.curated_step import (
    CuratedBatch,
    CuratedStep,
    CurationRequest,
    TaskCurator,
)
from agentrl.rollout.curation.curator import CurationState
from agentrl.rollout.curation.dapo import DynamicSamplingFilter, NothingToLearn, verdict
from agentrl.rollout.curation.group_curation import GroupCuration
from agentrl.rollout.curation.outcomes import GroupOutcome, RolloutSummary, result_of
from agentrl.rollout.curation.rules import CurationRules
from agentrl.rollout.curation.sampling import UniformTaskSampler
from agentrl.rollout.curation.state_json import decode, encode
from agentrl.rollout.curation.steps import HighEntropySteps
from agentrl.rollout.curation.success_pool import SuccessPool
from agentrl.rollout.curation.vade import VadeState, VadeTaskSampler
from agentrl.rollout.episode import EpisodeLimits
from agentrl.rollout.runner import RolloutRunner
from agentrl.rollout.scheduler.policy import SchedulerPolicy
from agentrl.rollout.scheduler.topology import GroupState, RolloutHooks, RolloutKey
from agentrl.rollout.task_sampler import TaskSampler
from agentrl.runtime.seeds import derive
from agentrl.store.trajectory_copy import AGE
from agentrl.task import Split, Task
from agentrl.trajectory import Finished, Leaf, Tree, reward_of
from benchmarks.letters import END, LetterChat
from tests.support.curating import Score, curator, filled, tokens_of


@dataclass
class Log:
    """Everything that was asked for in a step, and how often anything was."""

    asks: list[CurationRequest] = field(default_factory=list[CurationRequest])
    batches: int = 0


def run(
    who: TaskCurator,
    wanted: int,
    score: Score,
    *,
    version: int | None = None,
    random: Random | None = None,
) -> tuple[CuratedBatch, Log]:
    """Play a step to its end; within a round, asks end in the order `random` gives them."""
    at = who.state.steps if version is None else version
    step, log = who.step(wanted, version=at), Log()
    while asks := step.asks():
        log.asks += asks
        log.batches += 1
        (random or Random(0)).shuffle(asks)
        for ask in asks:
            step.ended(ask, filled(ask, who.state.steps, at, score))
    assert step.done
    return step.finish(), log


def by_number(step: int, task: str, sample: int) -> float | None:
    """Tasks 0, 3, ... are all wrong, 1, 4, ... all right, 2, 5, ... mixed."""
    return (0.0, 1.0, float(sample % 2))[int(task[1:]) % 3]


def ids(curated: CuratedBatch) -> list[str]:
    return [tree.task.id for tree in curated.trees]


# Dynamic sampling


def test_dropped_groups_are_replaced_until_the_batch_is_full() -> None:
    curated, log = run(curator(CurationRules(filter=DynamicSamplingFilter())), 3, by_number)
    assert ids(curated) == ["t2", "t5", "t8"]
    assert [a.task.id for a in log.asks] == [f"t{i}" for i in range(9)]
    assert {k: v for k, v in curated.figures.items() if v and "token" not in k} == {
        "curation/kept": 3,
        "curation/dropped_all_right": 3,
        "curation/dropped_all_wrong": 3,
        "curation/rounds": 5,
        "curation/trajectories_asked": 36,
    }
    trained = sum(tokens_of(t, s) for t in ids(curated) for s in range(4))
    wasted = sum(tokens_of(f"t{i}", s) for i in range(9) for s in range(4)) - trained
    assert curated.figures["curation/tokens_wasted"] == wasted
    assert curated.figures["curation/tokens_wasted_fraction"] == wasted / (wasted + trained)


def test_refills_stop_at_their_budget() -> None:
    who = curator(CurationRules(filter=DynamicSamplingFilter(max_refills=1)))
    curated, log = run(who, 3, by_number)
    assert log.batches == 2
    assert ids(curated) == ["t2"]
    assert curated.figures["curation/short"] == 2


def test_a_short_batch_stops_the_run_where_that_is_wanted() -> None:
    who = curator(CurationRules(filter=DynamicSamplingFilter(max_refills=1, short="stop")))
    with pytest.raises(NothingToLearn, match=r"1 of 3 groups.*2 rounds.*2 all_right, 2 all_wrong"):
        run(who, 3, by_number)
    assert who.state.steps == 0


@pytest.mark.parametrize("short", ["train", "stop"])
def test_an_empty_batch_always_stops_the_run_and_names_what_helps(
    short: Literal["train", "stop"],
) -> None:
    who = curator(CurationRules(filter=DynamicSamplingFilter(max_refills=0, short=short)))
    with pytest.raises(NothingToLearn, match=r"0 of 2.*curation\.filter\.max_refills") as stopped:
        run(who, 2, lambda step, task, sample: 1.0)
    assert ("curation.filter.short: train" in str(stopped.value)) == (short == "stop")


def test_without_a_filter_everything_is_kept_in_one_round() -> None:
    curated, log = run(curator(CurationRules()), 3, lambda step, task, sample: None)
    assert (ids(curated), log.batches) == (["t0", "t1", "t2"], 1)


def test_a_sampler_that_runs_out_ends_the_step() -> None:
    who = curator(
        CurationRules(sampler=UniformTaskSampler(), filter=DynamicSamplingFilter()), tasks=6
    )
    curated, log = run(who, 4, by_number)
    assert sorted(ids(curated)) == ["t2", "t5"]
    assert sorted(a.task.id for a in log.asks) == [f"t{i}" for i in range(6)]


def test_a_whole_batch_is_asked_for_again_and_the_surplus_waits() -> None:
    who = curator(CurationRules(filter=DynamicSamplingFilter(refill="batch")), tasks=100)
    curated, log = run(who, 4, by_number)
    assert [len(log.asks), log.batches] == [12, 3]
    assert ids(curated) == ["t2", "t5", "t8", "t11"]
    who = curator(CurationRules(filter=DynamicSamplingFilter(oversample=3.0)), tasks=100)
    curated, _ = run(who, 1, lambda step, task, sample: float(sample % 2))
    assert curated.figures["curation/surplus"] == 2
    waiting = {group.task_id for group in who.state.carried}
    assert waiting | {*ids(curated)} == {"t0", "t1", "t2"}
    later, log = run(who, 2, by_number)
    assert not log.asks
    assert {*ids(later)} == waiting
    assert later.figures["curation/carried_in"] == 2
    assert who.state.carried == ()


def test_a_group_that_waits_too_long_is_wasted() -> None:
    who = curator(CurationRules(filter=DynamicSamplingFilter(oversample=2.0)), tasks=100)
    run(who, 1, lambda step, task, sample: float(sample % 2), version=0)
    (waiting,) = who.state.carried
    curated, log = run(who, 1, lambda step, task, sample: float(sample % 2), version=2)
    assert log.asks
    assert waiting.task_id not in ids(curated)
    assert curated.figures["curation/tokens_wasted"] == waiting.tokens


def test_nothing_waits_at_age_zero() -> None:
    who = curator(
        CurationRules(filter=DynamicSamplingFilter(oversample=2.0, surplus_age=0)), tasks=100
    )
    curated, _ = run(who, 1, lambda step, task, sample: float(sample % 2))
    assert who.state.carried == ()
    assert curated.figures["curation/tokens_wasted"] > 0


def test_the_first_to_end_are_taken_and_the_length_bias_is_told() -> None:
    who = curator(CurationRules(filter=DynamicSamplingFilter(oversample=2.0)), tasks=100)
    step = who.step(2, version=0)
    asks = step.asks()
    mixed: Score = lambda step, task, sample: float(sample % 2)  # noqa: E731
    for ask in (asks[3], asks[1]):
        assert not step.done
        step.ended(ask, filled(ask, 0, 0, mixed))
    assert step.done
    for ask in (asks[0], asks[2]):
        step.abandoned(ask, filled(ask, 0, 0, mixed))
    curated = step.finish()
    assert ids(curated) == ["t1", "t3"]
    lengths = {i: sum(tokens_of(f"t{i}", s) for s in range(4)) / 4 for i in range(4)}
    taken, left = (lengths[1] + lengths[3]) / 2, (lengths[0] + lengths[2]) / 2
    assert curated.figures["curation/tokens_taken_mean"] == taken
    assert curated.figures["curation/tokens_left_mean"] == left
    assert curated.figures["curation/length_bias"] == pytest.approx(taken / left)
    assert curated.figures["curation/tokens_wasted"] == 4 * (lengths[0] + lengths[2])


def test_a_step_is_finished_when_it_is_done() -> None:
    who = curator(CurationRules())
    step = who.step(1, version=0)
    (ask,) = step.asks()
    with pytest.raises(ValueError, match=r"groups \[0\] are running"):
        step.finish()
    step.ended(ask, filled(ask, 0, 0, by_number))
    assert ids(step.finish()) == ["t0"]


def test_busy_tasks_and_those_of_waiting_groups_are_not_drawn() -> None:
    who = curator(
        CurationRules(sampler=UniformTaskSampler(), filter=DynamicSamplingFilter(oversample=3.0)),
        tasks=6,
    )
    mixed: Score = lambda step, task, sample: float(sample % 2)  # noqa: E731
    curated, _ = run(who, 1, mixed)
    step = who.step(6, version=1, busy=ids(curated))
    drawn = {ask.task.id for ask in step.asks()}
    assert len(drawn) == 3
    assert not drawn & ({*ids(curated)} | {g.task_id for g in who.state.carried})


def test_a_group_ends_once_and_only_in_its_step() -> None:
    result = RolloutSummary(sample=0, reward=1.0, tokens=1, turns=1, version=0)
    group = GroupOutcome(step=4, ordinal=0, task_id="t", asked=1, results=(result,))
    state = started(StepCollection(step=4, wanted=1), asked=1, got=1)
    once = ended(state, JudgedGroup(group=group, verdict="kept"))
    with pytest.raises(ValueError, match="4/0 is not running"):
        ended(once, JudgedGroup(group=group, verdict="kept"))
    with pytest.raises(ValueError, match="5/0 is not running"):
        ended(state, JudgedGroup(group=replace(group, step=5), verdict="kept"))


scores = st.sampled_from([0.0, 1.0, 0.5, None])


@given(
    st.lists(scores, min_size=40, max_size=40),
    st.integers(1, 6),
    st.integers(0, 4),
    st.sampled_from(["missing", "batch"]),
    st.sampled_from([1.0, 1.5]),
    st.integers(0, 2**32),
)
def test_no_token_and_no_group_is_lost_or_counted_twice(
    pattern: list[float | None],
    wanted: int,
    refills: int,
    refill: Any,
    oversample: float,
    order: int,
) -> None:
    rule = DynamicSamplingFilter(max_refills=refills, refill=refill, oversample=oversample)
    who = curator(CurationRules(filter=rule, pool=SuccessPool()), tasks=9)
    random, sampled, trained, wasted = Random(order), 0, 0, 0.0
    score: Score = lambda step, task, sample: pattern[(7 * step + 3 * int(task[1:]) + sample) % 40]  # noqa: E731
    for _ in range(4):
        try:
            curated, log = run(who, wanted, score, random=random)
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
        waiting = sum(group.tokens for group in who.state.carried)
        assert sampled == trained + wasted + waiting
        assert log.batches <= refills + 1
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
        played = [run(who, 3, by_number, random=random)[0] for _ in range(4)]
        return who.state, [ids(c) for c in played], [c.figures for c in played]

    assert states(one) == states(other)


# Allocation


def test_dars_grows_hard_groups_once_and_within_its_limit() -> None:
    rules = CurationRules(allocation=DarsAllocator(), filter=DynamicSamplingFilter(max_refills=0))
    rate = {"t0": 0, "t1": 1, "t2": 4}
    score: Score = lambda step, task, sample: float(sample % 8 < rate[task])  # noqa: E731
    curated, log = run(curator(rules, group_size=8), 3, score)
    asked = {(a.task.id, a.first_sample): a.trajectories for a in log.asks}
    assert asked == {("t0", 0): 8, ("t1", 0): 8, ("t2", 0): 8, ("t0", 8): 24, ("t1", 8): 11}
    assert [len(tree.leaves) for tree in curated.trees] == [19, 8]
    assert [sorted(leaf.sample for leaf in tree.leaves) for tree in curated.trees] == [
        [*range(19)],
        [*range(8)],
    ]
    assert curated.figures["curation/trajectories_asked"] == 59
    assert curated.figures["curation/trajectories_extra"] == 35


def test_dart_learns_from_a_tasks_own_past() -> None:
    rules = CurationRules(allocation=DartAllocator(length_slack=1.5))
    who = curator(rules, tasks=2, group_size=8)
    score: Score = lambda step, task, sample: float(task == "t0" or sample == 0)  # noqa: E731
    run(who, 2, score)
    _, log = run(who, 2, score)
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
    run(who, 2, by_step, version=0)
    curated, _ = run(who, 2, by_step, version=3)
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
    run(who, 2, by_step, version=0)
    with pytest.raises(NothingToLearn, match="all_wrong"):
        run(who, 2, by_step, version=4)


def test_a_lent_success_is_no_observation() -> None:
    rules = CurationRules(
        sampler=CdasTaskSampler(), filter=DynamicSamplingFilter(), pool=SuccessPool()
    )
    lending, alone = curator(rules, tasks=2), curator(replace(rules, pool=None), tasks=2)
    for who in (lending, alone):
        run(who, 2, by_step)
    run(lending, 2, by_step)
    step = alone.step(2, version=1)
    while asks := step.asks():
        for ask in asks:
            step.ended(ask, filled(ask, 1, 1, by_step))
    with pytest.raises(NothingToLearn):
        step.finish()
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
        run(who, 3, by_number)
        branches, carried = who.stored
        assert branches.keys() == who.state.pool.refs
        assert len(branches) == 2
        assert not carried


# Steps of high entropy


def test_turn_weights_come_with_the_batch() -> None:
    curated, _ = run(curator(CurationRules(steps=HighEntropySteps(keep=0.5))), 1, by_number)
    assert curated.weights is not None
    assert dict(curated.weights[0]) == {0: {0: 0.0}, 1: {0: 0.0}, 2: {0: 1.0}, 3: {0: 1.0}}
    assert run(curator(CurationRules()), 1, by_number)[0].weights is None


# Resuming


EVERYTHING = CurationRules(
    sampler=CdasTaskSampler(),
    allocation=DartAllocator(),
    filter=DynamicSamplingFilter(oversample=1.5),
    pool=SuccessPool(),
    revisit_every=4,
)


@pytest.mark.parametrize(
    "rules",
    [
        EVERYTHING,
        CurationRules(filter=DynamicSamplingFilter(refill="batch")),
        CurationRules(
            sampler=VadeTaskSampler(),
            allocation=DarsAllocator(),
            filter=DynamicSamplingFilter(),
            pool=SuccessPool(),
        ),
        CurationRules(sampler=UniformTaskSampler(), pool=SuccessPool(per_task=1, max_uses=1)),
    ],
)
def test_a_run_resumed_after_every_step_is_the_same_run(rules: CurationRules) -> None:
    def score(step: int, task: str, sample: int) -> float | None:
        return (0.0, 1.0, 0.0, None, 0.5)[(5 * step + int(task[1:]) * 3 + sample * sample) % 5]

    def played(resume: bool) -> list[object]:
        who, seen = curator(rules, tasks=20), list[object]()
        for step in range(8):
            curated, log = run(who, 3, score, random=Random(step))
            asked = [(a.task.id, a.first_sample, a.trajectories, a.max_turns) for a in log.asks]
            leaves = [[(x.sample, x.outcome) for x in tree.leaves] for tree in curated.trees]
            seen.append((asked, leaves, curated.figures, curated.loans, who.state))
            if resume:
                state = decode(CurationState, json.loads(json.dumps(encode(who.state))))
                branches, carried = who.stored
                who = curator(rules, tasks=20, state=state, branches=branches, carried=carried)
        return seen

    assert played(resume=True) == played(resume=False)


@given(st.lists(scores, min_size=8, max_size=8))
def test_a_step_half_way_survives_json(pattern: list[float | None]) -> None:
    groups = [
        GroupOutcome(
            step=0,
            ordinal=i,
            task_id="t",
            asked=1,
            results=(
                RolloutSummary(sample=0, reward=reward, tokens=1, turns=1, version=0, seconds=0.1),
            ),
        )
        for i, reward in enumerate(pattern)
    ]
    state = started(StepCollection(step=0, wanted=5), asked=8, got=8)
    for group in groups[:5]:
        state = ended(state, JudgedGroup(group=group, verdict="kept"))
    assert decode(StepCollection, json.loads(json.dumps(encode(state)))) == state


def test_what_was_not_stored_is_neither_lent_nor_carried() -> None:
    rules = CurationRules(filter=DynamicSamplingFilter(oversample=2.0), pool=SuccessPool())
    who = curator(rules, tasks=2)
    run(who, 1, by_step)
    assert who.state.carried
    assert who.state.pool.refs
    bare = curator(rules, tasks=2, state=who.state)
    with pytest.raises(NothingToLearn):
        run(bare, 1, by_step)


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


async def rolled(step: CuratedStep, rollouts: RolloutRunner, *, seed: int) -> list[CurationRequest]:
    """Play a step as a training loop would, one call of the pool per ask."""
    played: list[CurationRequest] = []

    async def play(ask: CurationRequest) -> None:
        limits = replace(rollouts.limits, max_turns=ask.max_turns)
        (tree,) = await replace(rollouts, limits=limits).collect(
            [ask.task], group_size=ask.trajectories, seed=seed, sampling=Sampling()
        )
        step.ended(ask, tree)

    while asks := step.asks():
        played += asks
        async with asyncio.TaskGroup() as group:
            for ask in asks:
                group.create_task(play(ask))
    return played


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


async def test_dynamic_sampling_over_the_pool_of_rollouts() -> None:
    rollouts = scripted()
    who = TaskCurator(
        CurationRules(filter=DynamicSamplingFilter(), allocation=DartAllocator(length_slack=None)),
        graded_tasks(),
        seed=0,
        group_size=4,
        max_turns=8,
    )
    for number in range(2):
        step = who.step(3, version=number)
        asks = await rolled(step, rollouts, seed=derive(0, "rollouts", number))
        curated = step.finish()
        assert ids(curated) == [f"t{i}" for i in range(9 * number + 2, 9 * number + 9, 3)]
        assert len(asks) == 9
        for tree in curated.trees:
            assert len(tree.leaves) == 4
            rewards = [reward_of(t.outcome) for t in tree.trajectories()]
            assert rewards == [1.0, 0.0, 1.0, None]
        figures = curated.figures
        assert figures["curation/dropped_all_right"] == figures["curation/dropped_all_wrong"] == 3
        assert figures["curation/tokens_wasted"] == 3 * (4 * 4 + 4 * 3) + 3 * 4
    assert who.state.position == 18
    assert who.state.records["t2"].recent == (1.0, 0.0, 1.0)


async def test_a_training_loop_needs_one_call_of_the_pool_per_round() -> None:
    rules = CurationRules(filter=DynamicSamplingFilter())
    who = TaskCurator(rules, graded_tasks(), seed=0, group_size=4, max_turns=8)
    step, rounds = who.step(3, version=0), 0
    while asks := step.asks():
        tasks = [ask.task for ask in asks]
        trees = await scripted().collect(tasks, group_size=4, seed=rounds, sampling=Sampling())
        for ask, tree in zip(asks, trees, strict=True):
            step.ended(ask, tree)
        rounds += 1
    assert ids(step.finish()) == ["t2", "t5", "t8"]
    assert rounds == 5


async def test_the_gate_replaces_what_dynamic_sampling_drops() -> None:
    trees: dict[int, Tree] = {}
    verdicts: dict[str, str] = {}

    def on_finished(attempt: RolloutKey, tree: Tree, leaf: Leaf) -> None:
        trees[attempt.group] = tree

    def on_group(state: GroupState, leaves: Sequence[Leaf]) -> bool:
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

    gate = scripted().gate(
        SchedulerPolicy(mode="sync", groups_per_step=3, group_size=4, retries=0),
        graded_tasks().take,
        sampling=Sampling(),
        seed=lambda number, task, sample: derive(number, task.id, sample),
        hooks=RolloutHooks(on_finished=on_finished, on_group=on_group),
    )
    async with gate:
        batch = await gate.batch()
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
    gate = replace(scripted(), engine=ScriptedEngine(late)).gate(
        SchedulerPolicy(mode=mode, groups_per_step=4, group_size=4, retries=0, concurrency=32),
        curation.tasks,
        sampling=Sampling(),
        seed=lambda number, task, sample: derive(number, task.id, sample),
        hooks=curation.hooks,
    )
    curation.flying = gate.unfinished
    lent = 0
    async with gate:
        for version in range(1, 9):
            batch = await gate.batch()
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
            await gate.load(None, version)
            assert decode(CurationState, json.loads(json.dumps(encode(who.state)))) == who.state
    assert lent
    assert who.state.steps == 8
    known = who.state.sampler
    assert isinstance(known, VadeState)
    assert known.evidence["t1"].misses == 0


async def test_behind_the_gate_a_step_that_teaches_nothing_stops_the_run() -> None:
    rules = CurationRules(filter=DynamicSamplingFilter(max_refills=1, min_spread=0.9, short="stop"))
    who = TaskCurator(rules, graded_tasks(), seed=0, group_size=4, max_turns=8)
    curation = GroupCuration(curator=who, wanted=3)
    gate = scripted().gate(
        SchedulerPolicy(groups_per_step=3, group_size=4, retries=0),
        curation.tasks,
        sampling=Sampling(),
        seed=lambda number, task, sample: derive(number, task.id, sample),
        hooks=curation.hooks,
    )
    async with gate:
        with pytest.raises(NothingToLearn, match=r"6 groups.*wants 3.*max_refills"):
            await gate.batch()
    more = CurationRules(filter=DynamicSamplingFilter(oversample=2.0))
    with pytest.raises(ConfigError, match=r"filter\.oversample.*rollout\.over_provision"):
        GroupCuration(curator=curator(more), wanted=1)


def test_a_group_begun_again_behind_the_gate_counts_once_in_its_step() -> None:
    who = curator(CurationRules(filter=DynamicSamplingFilter()), group_size=2)
    curation = GroupCuration(curator=who, wanted=1)
    (order,) = curation.tasks(1)
    ask = CurationRequest(ordinal=0, task=order.task, trajectories=2, max_turns=8)
    kept: list[bool] = []
    scores: tuple[Score, ...] = (lambda s, t, i: 1.0, lambda s, t, i: float(i))
    for score in scores:
        tree = filled(ask, 0, 0, score)
        for leaf in tree.leaves:
            curation.hooks.on_finished(RolloutKey(group=0, sample=leaf.sample), tree, leaf)
        state = GroupState(number=0, target=2, started=2, live=0, valid=2, failed=0)
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
        ask = CurationRequest(ordinal=number, task=order.task, trajectories=2, max_turns=8)
        tree = filled(ask, number, number, score)
        curation.hooks.on_finished(RolloutKey(group=number, sample=0), tree, tree.leaves[0])
        assert curation.hooks.on_group(GroupState(number=number, target=2), tree.leaves)
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
