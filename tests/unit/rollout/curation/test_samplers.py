"""Task samplers: the worked numbers, what they may never do, and that a saved state goes on.

Mutants seen caught: sign, slope and N of CDAS; its first observation; ties by index; a short side
not filled; p(1 - p) for VADE; either decay or the bound left out; another prior; rewards in order
of arrival; overdue tasks in catalogue order or a step late; taken tasks drawn; rounds or steps
that draw the same; a stream not skipped.
"""

import json
from collections.abc import Iterable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.env import BaseEnv, Env
from agentrl.errors import ConfigError
from agentrl.rollout.curation.cdas import (
    CdasState,
    CdasTaskSampler,
    TaskDifficulty,
    nearest,
    predict_rate,
)
from agentrl.rollout.curation.curator import (
    CuratedTaskSource,
    CurationState,
    JudgedGroup,
    StepCollection,
    build_first_state,
    update_state,
)
from agentrl.rollout.curation.outcomes import GroupOutcome, RolloutSummary
from agentrl.rollout.curation.rules import CurationRules
from agentrl.rollout.curation.sampling import CurriculumSampler, UniformTaskSampler, overdue
from agentrl.rollout.curation.state_json import decode, encode
from agentrl.rollout.curation.vade import (
    TaskEvidence,
    VadeState,
    VadeTaskSampler,
    information,
    most_informative,
)
from agentrl.rollout.task_sampler import TaskSampler
from agentrl.task import Split, Task

SAMPLERS: tuple[CurriculumSampler, ...] = (
    UniformTaskSampler(),
    CdasTaskSampler(),
    CdasTaskSampler(first_halved=True),
    VadeTaskSampler(),
)


def group(task: str, *rewards: float | None, ordinal: int = 0, step: int = 0) -> GroupOutcome:
    results = tuple(
        RolloutSummary(sample=i, reward=r, tokens=1, turns=1, version=0)
        for i, r in enumerate(rewards)
    )
    return GroupOutcome(
        step=step, ordinal=ordinal, task_id=task, asked=len(rewards), results=results
    )


class Numbers(BaseEnv):
    """An environment that is only ever asked for its tasks; ids may repeat."""

    def __init__(self, ids: Sequence[str]) -> None:
        self._ids = ids

    def tasks(self, split: Split, *, seed: int = 0) -> Iterable[Task]:
        for name in self._ids:
            yield Task(prompt=f"{split} {name}", id=name, split=split)

    async def reset(self, **_: object) -> object:
        raise AssertionError("a sampler never resets")

    step = reset


def stream(*ids: str) -> TaskSampler:
    env: Env = Numbers(ids)  # pyright: ignore[reportAssignmentType]
    return TaskSampler(env, seed=0)


def names(count: int) -> tuple[str, ...]:
    return tuple(f"t{i}" for i in range(count))


# CDAS


def difficulties(state: CdasState) -> dict[str, float]:
    return {task: known.value for task, known in state.difficulties.items()}


def test_cdas_worked_numbers_of_the_paper() -> None:
    rule = CdasTaskSampler()
    state = rule.observe(rule.start(), [group("1", 1.0), group("2", 1, 0, 0, 0)], tasks=3)
    assert difficulties(state) == {"1": -0.5, "2": 0.25}
    assert state.competence == pytest.approx(0.083333, abs=1e-6)


def test_cdas_worked_numbers_of_the_released_code() -> None:
    rule = CdasTaskSampler(first_halved=True)
    state = rule.observe(rule.start(), [group("1", 1.0), group("2", 1, 0, 0, 0)], tasks=3)
    assert difficulties(state) == {"1": -0.25, "2": 0.125}
    assert state.competence == pytest.approx(0.0416667, abs=1e-7)
    assert predict_rate(-0.25, state.competence) == pytest.approx(0.572404, abs=1e-6)
    assert predict_rate(0.0, state.competence) == pytest.approx(0.510415, abs=1e-6)
    state = rule.observe(state, [group("1", 1.0), group("3", 0.0)], tasks=3)
    assert difficulties(state)["1"] == pytest.approx(-0.309199, abs=1e-6)
    assert difficulties(state)["3"] == pytest.approx(0.255208, abs=1e-6)
    assert state.competence == pytest.approx(-0.0236697, abs=1e-6)


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(names(4)),
            st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=3),
            min_size=1,
        ),
        max_size=6,
    )
)
def test_competence_is_minus_the_mean_difficulty(steps: list[dict[str, list[float]]]) -> None:
    rule, state = CdasTaskSampler(), CdasState()
    for seen in steps:
        state = rule.observe(state, [group(t, *r) for t, r in seen.items()], tasks=4)
    assert state.competence == pytest.approx(-sum(difficulties(state).values()) / 4)
    assert all(-1 < value < 1 for value in difficulties(state).values())


def cdas_state(competence: float, **known: float) -> CdasState:
    found = {task: TaskDifficulty(value=value, updates=1) for task, value in known.items()}
    return CdasState(competence=competence, difficulties=found, steps=5)


def in_turn(tasks: Iterable[str]) -> dict[str, float]:
    return {task: i / 100 for i, task in enumerate(tasks)}


@pytest.mark.parametrize(
    ("count", "chosen"),
    [
        (4, {"b", "c", "d", "e"}),
        (2, {"c", "d"}),
        (5, {"b", "c", "d", "e", "a"}),
        (3, {"c", "d", "b"}),
        (9, {"a", "b", "c", "d", "e", "f"}),
    ],
)
def test_cdas_takes_the_nearest_of_both_sides(count: int, chosen: set[str]) -> None:
    state = cdas_state(0.1, a=-0.5, b=-0.1, c=0.1, d=0.2, e=0.5, f=0.9)
    assert set(nearest(state, count, draws=in_turn("abcdef"))) == chosen


def test_cdas_fills_a_short_side_from_the_other() -> None:
    state = cdas_state(0.0, a=0.1, b=0.2, c=0.3, d=-0.9)
    assert set(nearest(state, 4, draws=in_turn("abcd"))) == {"a", "b", "c", "d"}
    assert set(nearest(cdas_state(-1.0, a=0.1, b=0.2), 1, draws=in_turn("ab"))) == {"a"}
    assert set(nearest(cdas_state(0.0, a=0.1, b=0.2, c=0.3), 2, draws=in_turn("abc"))) == {"a", "b"}


def test_cdas_breaks_ties_at_random_and_not_by_index() -> None:
    first = {
        CdasTaskSampler().select(CdasState(steps=9), names(50), 1, seed=seed)[0]
        for seed in range(60)
    }
    assert len(first) > 20


# VADE


def test_vade_worked_numbers() -> None:
    rule = VadeTaskSampler()
    known = rule.update(TaskEvidence(), (1, 1, 1, 0, 0, 0, 0, 0))
    assert known.posterior == (4.0, 6.0)
    assert information(0.4) == pytest.approx(0.144)
    later = known.scale(0.995)
    assert (later.successes, later.misses) == pytest.approx((2.985, 4.975))
    again = rule.update(known, (1, 0, 0, 0, 0, 0, 0, 0))
    assert (again.successes, again.misses) == pytest.approx((3.1, 10.5))


def test_vade_forgets_every_task_a_little_in_every_step() -> None:
    rule = VadeTaskSampler(global_decay=0.5)
    state = rule.observe(rule.start(), [group("a", 1, 1), group("b", None, None)], tasks=2)
    assert state.evidence == {"a": TaskEvidence(successes=1.0, misses=0.0)}
    state = rule.observe(state, [], tasks=2)
    assert state.evidence["a"] == TaskEvidence(successes=0.5, misses=0.0)


@given(st.lists(st.lists(st.floats(-1, 2), min_size=1, max_size=8), max_size=20))
def test_vades_evidence_is_bounded(steps: list[list[float]]) -> None:
    rule, state = VadeTaskSampler(local_decay=1.0, global_decay=1.0), VadeState()
    for rewards in steps:
        state = rule.observe(state, [group("a", *rewards)], tasks=1)
        assert 0 <= state.evidence["a"].total <= 32.0 * (1 + 1e-9)
        assert state.evidence["a"].misses >= -1e-9


def test_vade_prefers_hard_but_possible_tasks() -> None:
    assert max(range(101), key=lambda p: information(p / 100)) == 33
    assert information(1 / 3) == pytest.approx(4 / 27)
    assert most_informative({"a": 0.5, "b": 0.3, "c": 1.0, "d": 0.0}, 2) == ("b", "a")
    state = VadeState(
        evidence={
            "hard": TaskEvidence(successes=10, misses=20),
            "solved": TaskEvidence(successes=30, misses=0),
            "hopeless": TaskEvidence(successes=0, misses=30),
        }
    )
    chosen = [VadeTaskSampler().select(state, (*state.evidence,), 1, seed=s)[0] for s in range(50)]
    assert chosen.count("hard") > 45


# All of them


@pytest.mark.parametrize("rule", SAMPLERS)
@given(
    count=st.integers(0, 12),
    size=st.integers(0, 10),
    seed=st.integers(0, 9),
    steps=st.integers(0, 2),
)
def test_what_is_chosen_is_real_different_and_decided_by_the_seed(
    rule: CurriculumSampler, count: int, size: int, seed: int, steps: int
) -> None:
    tasks, state = names(size), rule.start()
    for _ in range(steps):
        state = rule.observe(state, [group(t, 1, 0, 0) for t in tasks[:3]], tasks=max(size, 1))
    chosen = rule.select(state, tasks, count, seed=seed)
    assert len(chosen) == len(set(chosen)) == min(count, size)
    assert set(chosen) <= set(tasks)
    assert rule.select(state, tasks, count, seed=seed) == chosen


@pytest.mark.parametrize("rule", SAMPLERS)
@given(st.permutations(range(6)))
def test_the_order_of_a_steps_groups_does_not_matter(
    rule: CurriculumSampler, order: list[int]
) -> None:
    rates = (0.1, 0.7, 0.3, 0.9, 1 / 3, 0.2)
    groups = [group(f"t{i % 4}", rates[i], rates[-i], 1.0, ordinal=i) for i in range(6)]
    mixed = [groups[i] for i in order]
    assert rule.observe(rule.start(), mixed, tasks=9) == rule.observe(rule.start(), groups, tasks=9)


@pytest.mark.parametrize("rule", SAMPLERS)
def test_failures_are_no_observation(rule: CurriculumSampler) -> None:
    with_failures = [group("a", 1.0, None, 0.0, None), group("b", None)]
    seen = rule.observe(rule.start(), with_failures, tasks=2)
    assert seen == rule.observe(rule.start(), [group("a", 1.0, 0.0)], tasks=2)


def played(
    rules: CurationRules, count: int, *, tasks: int, steps: int, through_json: bool = False
) -> tuple[list[list[str]], CurationState]:
    """Draw and observe step by step, every group scoring by a fixed pattern."""
    source = CuratedTaskSource(rules, stream(*names(tasks)), seed=4)
    state = build_first_state(rules)
    drawn: list[list[str]] = []
    for step in range(steps):
        if through_json:
            state = decode(CurationState, json.loads(json.dumps(encode(state))))
            source = CuratedTaskSource(rules, stream(*names(tasks)), seed=4)
            source.restore(state)
        got = [t.id for t in source.take(state, count, round_number=0, taken=())]
        drawn.append(got)
        state = after(rules, state, got, step, position=source.position, tasks=tasks)
    return drawn, state


def pattern(number: int) -> tuple[float, ...]:
    return tuple(float(number * i % 3 == 0) for i in range(4))


def after(
    rules: CurationRules,
    state: CurationState,
    got: list[str],
    step: int,
    *,
    position: int,
    tasks: int,
) -> CurationState:
    groups = [
        group(task, *pattern(int(task[1:])), ordinal=i, step=step) for i, task in enumerate(got)
    ]
    collection = StepCollection(
        step=step,
        judged=tuple(JudgedGroup(group=g, verdict="kept") for g in groups),
    )
    return update_state(
        rules, state, collection, [], drawn=got, version=step, position=position, tasks=tasks
    )


@pytest.mark.parametrize("rule", [None, *SAMPLERS])
def test_a_resumed_run_draws_exactly_the_same(rule: CurriculumSampler | None) -> None:
    rules = CurationRules(sampler=rule)
    whole = played(rules, 5, tasks=23, steps=12)
    assert played(rules, 5, tasks=23, steps=12, through_json=True) == whole
    assert played(rules, 5, tasks=23, steps=12) == whole


@pytest.mark.parametrize("rule", SAMPLERS)
@given(count=st.integers(1, 6), tasks=st.integers(6, 25), every=st.integers(1, 8))
def test_no_task_waits_longer_than_its_bound(
    rule: CurriculumSampler, count: int, tasks: int, every: int
) -> None:
    """A task is drawn at least once in any `every` + ceil(tasks / count) steps in a row."""
    bound = every + -(-tasks // count)
    rules = CurationRules(sampler=rule, revisit_every=every)
    drawn, _ = played(rules, count, tasks=tasks, steps=3 * bound)
    for task in names(tasks):
        steps = [-1, *(i for i, got in enumerate(drawn) if task in got), len(drawn)]
        assert max(b - a for a, b in pairwise(steps)) <= bound


def test_without_a_bound_cdas_leaves_tasks_out() -> None:
    drawn, _ = played(CurationRules(sampler=CdasTaskSampler()), 2, tasks=30, steps=60)
    assert len({task for got in drawn[40:] for task in got}) < 30


def test_the_stream_draws_every_task_once_per_epoch() -> None:
    drawn, state = played(CurationRules(), 5, tasks=10, steps=8)
    flat = [task for got in drawn for task in got]
    assert all(set(flat[i : i + 10]) == set(names(10)) for i in range(0, 40, 10))
    assert state.position == 40


def test_what_is_longest_overdue_comes_first() -> None:
    drawn = {"a": 5, "b": 1, "c": 3}
    assert overdue(("a", "b", "c", "d"), drawn, step=6, every=3, count=9) == ("d", "b", "c")
    assert overdue(("a", "b", "c", "d"), drawn, step=6, every=3, count=1) == ("d",)
    assert overdue(("a",), drawn, step=6, every=2, count=1) == ()


def test_a_sampler_runs_out_of_tasks_and_leaves_out_those_taken() -> None:
    rules = CurationRules(sampler=UniformTaskSampler())
    source = CuratedTaskSource(rules, stream("a", "b", "c", "a"), seed=0)
    state = build_first_state(rules)
    assert source.tasks == 3
    got = source.take(state, 5, round_number=0, taken={"b"})
    assert sorted(task.id for task in got) == ["a", "c"]
    assert source.take(state, 1, round_number=1, taken={"a", "b", "c"}) == []


def test_rounds_of_a_step_and_steps_draw_anew() -> None:
    rules = CurationRules(sampler=UniformTaskSampler())
    source = CuratedTaskSource(rules, stream(*names(40)), seed=0)
    draws = {
        tuple(t.id for t in source.take(CurationState(steps=s), 5, round_number=r, taken=()))
        for s in range(3)
        for r in range(3)
    }
    assert len(draws) == 9


def test_a_sampler_needs_tasks_that_end_and_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = CurationRules(sampler=UniformTaskSampler())
    monkeypatch.setattr("agentrl.rollout.curation.curator.CATALOGUE", 5)
    assert CuratedTaskSource(rules, stream(*names(5)), seed=0).tasks == 5
    with pytest.raises(ConfigError, match=r"curation\.sampler\.name.*env\.task_limit"):
        CuratedTaskSource(rules, stream(*names(6)), seed=0)
    with pytest.raises(ConfigError, match="no train task"):
        CuratedTaskSource(rules, stream(), seed=0)
    source = CuratedTaskSource(rules, stream("a"), seed=0)
    with pytest.raises(ConfigError, match=r"'gone'.*env\.task_limit"):
        source.restore(CurationState(drawn={"gone": 3, "a": 1}))


def test_the_rest_of_a_stream_counts_as_handed_out() -> None:
    sampler = stream("a", "b", "c")
    sampler.take(1)
    assert [task.id for task in sampler.stream()] == ["b", "c"]
    assert sampler.position == 3
    assert {task.id for task in sampler.take(3)} == {"a", "b", "c"}
