"""Rules of curation: how many, how long, which groups, which steps; worked numbers first.

Mutants seen caught: no cap at the base; oldest scores instead of latest; a length rounded up by
its last bit; 1/N for DARS's zero; hardness by successes; limit beyond the first phase; DARS
counts failures; rewards not cut; rounded means; `<` for the spread; singletons after failures;
refill budget off by one; pool age and uses off by one; the oldest
success lent; sample 0 replaced; loans to every group; failed steps in the percentile; the last
node of a turn only; the token mask ignored; unknown entropies dropped; unknown keys of a saved
state accepted.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import ConfigError
from agentrl.learn.sample import spans_of, token_weights
from agentrl.rollout.curation.allocation import (
    DarsAllocator,
    DarsForm,
    DartAllocator,
    FixedAllocator,
    RolloutAllocation,
    advantage_mass,
    cap_dart_turns,
    count_dars_extra,
    count_dart_rollouts,
)
from agentrl.rollout.curation.dapo import DynamicSamplingFilter, Verdict, spread, verdict
from agentrl.rollout.curation.duet import DuetAllocator
from agentrl.rollout.curation.outcomes import GroupOutcome, RolloutSummary, result_of
from agentrl.rollout.curation.record import UNSEEN, TaskStatistics, observe
from agentrl.rollout.curation.rules import (
    CONFLICTS,
    SLOTS,
    CurationContext,
    CurationRules,
    build_curation_rules,
    check,
)
from agentrl.rollout.curation.state_json import decode, encode
from agentrl.rollout.curation.steps import (
    HighEntropySteps,
    TurnTokens,
    steps_of,
    threshold,
    turn_weights,
)
from agentrl.rollout.curation.success_pool import PooledSuccess, PoolState, SuccessPool, apply_loan
from agentrl.task import Task
from agentrl.trajectory import Failed, Finished, Leaf, Node, Tree, Truncated


def results(*rewards: float | None, turns: int = 2, tokens: int = 10) -> tuple[RolloutSummary, ...]:
    return tuple(
        RolloutSummary(sample=i, reward=r, tokens=tokens, turns=turns, version=0, seconds=1.0)
        for i, r in enumerate(rewards)
    )


def group(*rewards: float | None, task: str = "t", ordinal: int = 0, step: int = 0) -> GroupOutcome:
    return GroupOutcome(
        step=step, ordinal=ordinal, task_id=task, asked=len(rewards), results=results(*rewards)
    )


# DART


@pytest.mark.parametrize(
    ("rate", "wanted"), [(None, 8), (0.3, 8), (0.6, 8), (0.75, 5), (0.9, 3), (1.0, 2)]
)
def test_dart_asks_for_fewer_of_what_is_nearly_solved(rate: float | None, wanted: int) -> None:
    assert count_dart_rollouts(rate, base=8, threshold=0.6, minimum=1) == wanted


def test_darts_released_threshold_thins_out_solved_tasks_only() -> None:
    wanted = [count_dart_rollouts(r, base=8, threshold=1.0, minimum=1) for r in (0.75, 0.9, 1.0)]
    assert wanted == [8, 8, 2]


@given(st.floats(0, 1), st.integers(1, 32), st.floats(0, 1), st.integers(1, 4))
def test_dart_stays_between_its_minimum_and_the_base(
    rate: float, base: int, limit: float, minimum: int
) -> None:
    wanted = count_dart_rollouts(rate, base=base, threshold=limit, minimum=min(minimum, base))
    assert min(minimum, base) <= wanted <= base


@pytest.mark.parametrize(
    ("longest", "slack", "cap"),
    [(0, 1.5, 90), (4, 1.5, 6), (3, 1.5, 5), (50, 1.1, 55), (7, 1.0, 7), (80, 1.5, 90)],
)
def test_darts_turn_cap_is_a_bit_more_than_the_longest_success(
    longest: int, slack: float, cap: int
) -> None:
    assert cap_dart_turns(longest, limit=90, slack=slack) == cap
    assert cap_dart_turns(longest, limit=90, slack=math.inf) == 90


def test_dart_reads_the_latest_scores_of_a_task() -> None:
    record = TaskStatistics(recent=(0.0,) * 8 + (1.0,) * 6 + (0.0,) * 2, longest_success_turns=4)
    allotment = DartAllocator(length_slack=1.5).first(record, base=8, max_turns=30)
    assert (allotment.trajectories, allotment.max_turns) == (5, 6)
    allotment = DartAllocator(length_slack=None).first(UNSEEN, base=8, max_turns=30)
    assert (allotment.trajectories, allotment.max_turns) == (8, 30)


# DARS


@pytest.mark.parametrize(
    ("rate", "equal", "hardness"),
    [(0.0, 24, 56), (0.125, 11, 24), (0.25, 3, 8), (0.375, 1, 3), (0.5, 0, 0), (0.9, 0, 0)],
)
def test_dars_worked_numbers(rate: float, equal: int, hardness: int) -> None:
    assert count_dars_extra(rate, size=8, base=8, limit=32, form="equal") == equal
    assert count_dars_extra(rate, size=8, base=8, limit=64, form="hardness") == hardness


def test_dars_with_the_standard_deviation_has_a_flatter_mass() -> None:
    assert advantage_mass(0.5, normalise_std=True) == 1.0
    assert count_dars_extra(0.25, size=8, base=8, limit=32, form="equal", normalise_std=True) == 2


@given(
    st.lists(st.none() | st.floats(-1, 2), min_size=1, max_size=16),
    st.sampled_from(["equal", "hardness"]),
    st.booleans(),
    st.integers(1, 80),
)
def test_dars_never_asks_beyond_its_limit(
    rewards: list[float | None], form: DarsForm, std: bool, limit: int
) -> None:
    rule = DarsAllocator(form=form, normalise_std=std, max_trajectories=limit)
    (more,) = rule.more([group(*rewards)], base=len(rewards))
    assert 0 <= more <= max(0, limit - len(rewards))


def test_a_group_of_failures_gets_no_second_phase() -> None:
    assert DarsAllocator().more([group(None, None)], base=2) == [0]
    assert FixedAllocator().more([group(0.0, 0.0)], base=2) == [0]


def test_failures_do_not_make_a_task_look_hard() -> None:
    assert DarsAllocator().more([group(1.0, 0.0, *[None] * 6)], base=8) == [0]


def test_a_second_phase_stays_within_its_seconds() -> None:
    assert DarsAllocator(budget_s=5.5).more([group(*[0.0] * 8)], base=8) == [5]
    assert DarsAllocator(budget_s=500).more([group(*[0.0] * 8)], base=8) == [24]
    assert DarsAllocator(budget_s=math.inf).more([group(*[0.0] * 8)], base=8) == [24]


# Records


def test_records_leave_failures_out() -> None:
    records = observe({}, [group(None, None)], window=4, success_above=0.0)
    assert records == {}
    records = observe({}, [group(1.0, None, -3.0, 0.5)], window=4, success_above=0.0)
    assert records["t"].recent == (1.0, 0.0, 0.5)
    assert (records["t"].trajectories, records["t"].longest_success_turns) == (3, 2)


@given(st.permutations(range(4)), st.permutations(range(3)))
def test_records_do_not_depend_on_the_order_of_a_step(order: list[int], inner: list[int]) -> None:
    groups = [group(0.0, 1.0, float(i % 2), ordinal=i) for i in range(4)]
    mixed = [replace(groups[i], results=tuple(groups[i].results[j] for j in inner)) for i in order]
    assert observe({}, mixed, window=5, success_above=0.0) == observe(
        {}, groups, window=5, success_above=0.0
    )


# Dynamic sampling


@pytest.mark.parametrize(
    ("rewards", "found"),
    [
        ((1.0, 0.0), "kept"),
        ((1.0, 1.0), "all_right"),
        ((0.0, 0.0), "all_wrong"),
        ((-1.0, -1.0), "all_wrong"),
        ((0.1, 0.1, 0.1), "even"),
        ((0.5, 0.25), "kept"),
        ((1.0, 1.0, None), "all_right"),
        ((1.0, None, None), "too_few"),
        ((None, None), "too_few"),
        ((1.0,), "kept"),
        ((None,), "too_few"),
    ],
)
def test_only_a_spread_of_rewards_is_kept(rewards: tuple[float | None, ...], found: str) -> None:
    assert verdict(group(*rewards), DynamicSamplingFilter()) == found


def test_ui_s1s_threshold_on_the_spread_over_n() -> None:
    assert spread((1.0, 1.0, 1.0, 0.0)) == pytest.approx(0.4330127)
    rule = DynamicSamplingFilter(min_spread=0.3)
    assert verdict(group(1.0, 1.0, 1.0, 0.0), rule) == "kept"
    assert verdict(group(1.0, 1.0, 1.0, 1.0), rule) == "all_right"
    assert verdict(group(0.6, 0.4), rule) == "even"


def test_a_mean_that_is_too_high_is_too_easy() -> None:
    rule = DynamicSamplingFilter(max_mean_reward=0.75)
    found: list[Verdict] = [verdict(group(1.0, r), rule) for r in (0.0, 0.49, 0.5)]
    assert found == ["kept", "kept", "too_easy"]


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=9), st.integers(0, 4))
def test_failures_never_change_a_verdict(rewards: list[float], failures: int) -> None:
    with_failures = group(*rewards, *[None] * failures)
    assert verdict(with_failures, DynamicSamplingFilter()) == verdict(
        group(*rewards), DynamicSamplingFilter()
    )


def test_equal_rewards_have_no_spread_whatever_the_rounding() -> None:
    assert spread((0.1,) * 3) == spread((0.7,) * 7) == 0.0


# Success pool


def stored(sample: int, version: int, *, used: int = 0) -> PooledSuccess:
    result = RolloutSummary(sample=sample, reward=1.0, tokens=7, turns=3, version=version)
    return PooledSuccess(group=f"{version}/0", result=result, used=used)


def lend(
    held: list[PooledSuccess], rule: SuccessPool, rewards: tuple[float | None, ...]
) -> str | None:
    state = PoolState(successes={"t": tuple(held)})
    loan = rule.lend(state, group(*rewards, step=9), version=10, success_above=0.0)
    return loan.ref if loan else None


def test_the_newest_success_takes_the_place_of_the_oldest_trajectory() -> None:
    state = PoolState(successes={"t": (stored(3, 4), stored(5, 6))})
    wrong = group(*[0.0] * 8, step=9)
    older = replace(wrong.results[2], version=-1)
    wrong = replace(wrong, results=(*wrong.results[:2], older, *wrong.results[3:]))
    loan = SuccessPool().lend(state, wrong, version=10, success_above=0.0)
    assert loan is not None
    assert (loan.ref, loan.age, loan.result.sample, loan.group) == ("6/0/5", 4, 2, "9/0")
    lent = apply_loan(wrong, loan)
    assert len(lent.results) == 8
    assert sorted(lent.rewards) == [0.0] * 7 + [1.0]
    assert older not in lent.results


def test_only_a_group_without_success_gets_a_loan() -> None:
    assert lend([stored(0, 9)], SuccessPool(), (0.0, 0.1)) is None
    assert lend([stored(0, 9)], SuccessPool(), (None, None)) is None
    assert lend([stored(0, 9)], SuccessPool(), (None, -1.0)) == "9/0/0"
    assert lend([], SuccessPool(), (0.0, 0.0)) is None


def test_a_loan_is_within_its_age_and_its_uses() -> None:
    held = [stored(0, 2), stored(1, 3, used=1)]
    assert lend(held, SuccessPool(max_age=8), (0.0,)) == "3/0/1"
    assert lend(held, SuccessPool(max_age=8, max_uses=1), (0.0,)) == "2/0/0"
    assert lend(held, SuccessPool(max_age=7, max_uses=1), (0.0,)) is None
    assert lend(held[:1], SuccessPool(max_age=7), (0.0,)) is None
    assert lend(held[:1], SuccessPool(max_age=None), (0.0,)) == "2/0/0"


@given(st.permutations(range(5)))
def test_the_pool_forgets_in_the_same_way_in_any_order(order: list[int]) -> None:
    rule = SuccessPool(per_task=3)
    groups = [group(1.0, 0.0, 1.0, ordinal=i, task=f"t{i % 2}") for i in range(5)]
    kept = rule.observe(PoolState(), groups, [], version=1, success_above=0.0)
    mixed = [groups[i] for i in order]
    assert rule.observe(PoolState(), mixed, [], version=1, success_above=0.0) == kept
    assert all(len(held) == 3 for held in kept.successes.values())
    assert kept.refs >= {"0/4/2", "0/3/2"}
    late = rule.observe(kept, [], [], version=10, success_above=0.0)
    assert late.successes == {}


def test_uses_are_counted_per_batch() -> None:
    rule = SuccessPool(max_uses=1)
    pool = PoolState(successes={"t": (stored(0, 9),)})
    loan = rule.lend(pool, group(0.0, 0.0, step=9), version=10, success_above=0.0)
    assert loan is not None
    assert rule.observe(pool, [], [loan], version=10, success_above=0.0).successes == {}
    assert rule.observe(pool, [], [], version=10, success_above=0.0) == pool


# Steps


def steps(*entropies: float | None) -> list[TurnTokens]:
    return [TurnTokens(tokens=10, entropy=e) for e in entropies]


def test_the_upper_four_fifths_train() -> None:
    entropies = tuple(map(float, range(1, 11)))
    assert threshold(np.asarray(entropies), keep=0.8) == pytest.approx(2.8)
    weights = HighEntropySteps().weights(steps(*entropies))
    assert weights.tolist() == [0.0, 0.0] + [1.0] * 8
    top = HighEntropySteps(how="top").weights(steps(*entropies))
    assert top.tolist() == weights.tolist()


def test_equal_entropies_all_train_at_a_percentile_and_not_by_a_top_share() -> None:
    assert HighEntropySteps().weights(steps(*[0.3] * 5)).tolist() == [1.0] * 5
    assert HighEntropySteps(how="top").weights(steps(*[0.3] * 5)).sum() == 4
    thirds = HighEntropySteps(keep=0.7).weights(steps(*map(float, range(11))))
    assert thirds.tolist() == [0.0] * 3 + [1.0] * 8


def test_renormalised_weights_keep_the_weight_of_the_group() -> None:
    mixed = [TurnTokens(tokens=30, entropy=0.1), *steps(1.0, 2.0, 3.0, 4.0)]
    weights = HighEntropySteps(weight="renormalised").weights(mixed)
    assert weights[0] == 0.0
    assert sum(w * s.tokens for w, s in zip(weights, mixed, strict=True)) == pytest.approx(70)


def test_a_step_of_unknown_entropy_trains() -> None:
    assert HighEntropySteps().weights(steps(None, 1.0, None, 2.0)).tolist() == [1.0, 0.0, 1.0, 1.0]
    assert HighEntropySteps().weights(steps(None)).tolist() == [1.0]
    assert HighEntropySteps().weights([]).tolist() == []


@given(st.lists(st.none() | st.floats(0, 10), max_size=30), st.floats(0.01, 1))
def test_at_least_the_share_of_known_steps_trains(
    entropies: list[float | None], keep: float
) -> None:
    for how in ("percentile", "top"):
        weights = HighEntropySteps(keep=keep, how=how).weights(steps(*entropies))
        known = [w for w, e in zip(weights, entropies, strict=True) if e is not None]
        assert all(w for w, e in zip(weights, entropies, strict=True) if e is None)
        assert not known or sum(known) >= 1
        assert sum(known) >= math.floor(keep * len(known) - 1e-6)


def sampled(parent: int | None, turn: int, *entropies: float) -> Node:
    n = len(entropies)
    return Node(
        parent=parent,
        source="sampled",
        token_ids=(5,) * n,
        logprobs=(-1.0,) * n,
        versions=(3,) * n,
        entropies=entropies,
        turn=turn,
    )


def branched() -> Tree:
    """Two trajectories that share their first turn, one of two turns that failed, one prompt."""
    tree = Tree(Task(prompt="p", answer="a", id="t"))
    root = tree.add(Node(parent=None, source="prompt", token_ids=(1, 2), turn=0))
    shared = tree.add(sampled(root, 0, 0.1, 0.3))
    tool = tree.add(Node(parent=shared, source="tool", token_ids=(9,), turn=1))
    first = tree.add(sampled(tool, 1, 0.1))
    rest = tree.add(sampled(first, 1, 0.9))
    other = tree.add(sampled(tool, 1, 2.0))
    broken = tree.add(sampled(root, 0, 9.0))
    tree.end(Leaf(node=rest, outcome=Finished(1.0), sample=0, seconds=2.0))
    tree.end(Leaf(node=other, outcome=Truncated("turns", 0.0), sample=1))
    tree.end(Leaf(node=broken, outcome=Failed("env", "x"), sample=2))
    return tree


def test_a_shared_step_is_one_step_and_a_failed_one_is_none() -> None:
    found = steps_of(branched())
    assert [(s.tokens, s.entropy) for s in found.values()] == [(2, 0.2), (2, 0.5), (1, 2.0)]
    weights = turn_weights(branched(), HighEntropySteps(keep=0.6))
    assert weights == {0: {0: 0.0, 1: 1.0}, 1: {0: 0.0, 1: 1.0}}


def test_step_weights_multiply_the_token_mask_and_nothing_else() -> None:
    trajectory = branched().trajectories()[0]
    spans = spans_of(np.array(trajectory.mask), turns=np.array(trajectory.turns))
    assert token_weights(spans, {0: 0.0, 1: 2.0, 9: 5.0}).tolist() == [0, 0, 0, 0, 0, 2, 2]
    assert token_weights(spans, {}).tolist() == [0, 0, 1, 1, 0, 1, 1]


def test_what_curation_sees_of_a_tree() -> None:
    tree = branched()
    results = tuple(result_of(tree, leaf) for leaf in tree.leaves)
    seen = GroupOutcome(step=2, ordinal=1, task_id=tree.task.id, asked=4, results=results)
    assert (seen.key, seen.task_id, seen.asked, seen.tokens) == ("2/1", "t", 4, 8)
    assert [(r.sample, r.reward, r.tokens, r.turns, r.version) for r in seen.results] == [
        (0, 1.0, 4, 2, 3),
        (1, 0.0, 3, 2, 3),
        (2, None, 1, 1, 3),
    ]
    assert seen.rewards == (1.0, 0.0)
    assert seen.oldest_version == 3


@pytest.mark.parametrize("unknown", [math.nan, -math.inf])
def test_a_token_without_a_log_prob_does_not_end_the_allocation(unknown: float) -> None:
    tree = Tree(Task(prompt="p", id="t"))
    root = tree.add(Node(parent=None, source="prompt", token_ids=(1,), turn=0))
    for sample in range(2):
        tokens = replace(sampled(root, 0, 0.1, 0.2), logprobs=(unknown, -2.0 - sample))
        tree.end(Leaf(node=tree.add(tokens), outcome=Finished(float(sample)), sample=sample))
    results = tuple(result_of(tree, leaf) for leaf in tree.leaves)
    assert [result.logprob for result in results] == [-2.0, -3.0]
    group = GroupOutcome(step=0, ordinal=0, task_id="t", asked=2, results=results)
    assert DuetAllocator(first_round=2).more([group], base=4) == [2]


def test_a_reward_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        group(math.nan)


# Composition


AROUND = CurationContext(group_size=8, tasks_per_step=4, tasks=100, entropies=True)


def test_every_method_can_be_named() -> None:
    for slot, methods in SLOTS.items():
        for name in methods:
            assert isinstance(build_curation_rules({slot: {"name": name}}), CurationRules)
    found = build_curation_rules(
        {"allocation": {"name": "dart", "threshold": 1.0}, "revisit_every": 3}
    )
    assert found == CurationRules(allocation=DartAllocator(threshold=1.0), revisit_every=3)


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"alocation": {}}, r"curation\.alocation is not a key"),
        ({"allocation": {"name": "darts"}}, r"curation\.allocation\.name is 'darts'.*'dars'"),
        ({"allocation": {}}, r"curation\.allocation\.name is None"),
        ({"filter": {"name": "dapo", "spread": 1}}, r"curation\.filter \(dapo\).*'spread'"),
        ({"filter": {"name": "none", "spread": 1}}, r"curation\.filter \(none\).*spread"),
    ],
)
def test_wrong_names_and_knobs_are_named(keys: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        build_curation_rules(keys)


ALL = {
    "sampler": {"name": "cdas"},
    "allocation": {"name": "dart"},
    "filter": {"name": "dapo"},
    "pool": {"name": "success"},
    "steps": {"name": "high_entropy"},
    "revisit_every": 5,
}


@pytest.mark.parametrize(
    ("rules", "around"),
    [
        (build_curation_rules(ALL), replace(AROUND, max_age=8)),
        (CurationRules(), replace(AROUND, group_size=1, tasks=None, entropies=False)),
        (
            build_curation_rules({"allocation": {"name": "dars"}, "pool": {"name": "success"}}),
            AROUND,
        ),
    ],
)
def test_everything_together_composes(rules: CurationRules, around: CurationContext) -> None:
    assert complaint(rules, around) == ""


def complaint(rules: CurationRules, around: CurationContext) -> str:
    try:
        check(rules, around)
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("keys", "around", "names"),
    [
        (
            {"sampler": {"name": "vade"}},
            {"tasks": None},
            ("curation.sampler.name", "env.task_limit"),
        ),
        (
            {"sampler": {"name": "vade"}},
            {"tasks": 3},
            ("curation.sampler.name", "rollout.tasks_per_step"),
        ),
        ({"revisit_every": 2}, {}, ("curation.revisit_every", "curation.sampler.name")),
        ({"allocation": {"name": "dart"}}, {"tasks": None}, ("dart", "env.task_limit")),
        ({"pool": {"name": "success"}}, {"tasks": None}, ("curation.pool.name", "env.task_limit")),
        ({"filter": {"name": "dapo"}}, {"group_size": 1}, ("curation.filter.name", "group_size")),
        (
            {"filter": {"name": "dapo", "min_valid": 9}},
            {},
            ("curation.filter.min_valid", "rollout.group_size"),
        ),
        ({"pool": {"name": "success"}}, {"group_size": 1}, ("curation.pool.name", "group_size")),
        (
            {"pool": {"name": "success", "max_age": 3}},
            {"max_age": 2},
            ("curation.pool.max_age", "rollout.max_age"),
        ),
        (
            {"pool": {"name": "success", "max_age": None}},
            {"max_age": 2},
            ("curation.pool.max_age", "rollout.max_age"),
        ),
        (
            {"allocation": {"name": "dart", "minimum": 9}},
            {},
            ("curation.allocation.minimum", "rollout.group_size"),
        ),
        (
            {"allocation": {"name": "dars", "max_trajectories": 8}},
            {},
            ("curation.allocation.max_trajectories", "rollout.group_size"),
        ),
        (
            {"allocation": {"name": "xrpo", "first_round": 8}},
            {},
            ("curation.allocation.first_round", "rollout.group_size"),
        ),
        (
            {"allocation": {"name": "duet", "first_round": 4, "max_trajectories": 4}},
            {},
            ("curation.allocation.max_trajectories", "curation.allocation.first_round"),
        ),
        (
            {"allocation": {"name": "xrpo"}, "filter": {"name": "dapo"}},
            {},
            ("curation.filter.name", "curation.allocation.name"),
        ),
        (
            {"steps": {"name": "high_entropy"}},
            {"entropies": False},
            ("curation.steps.name", "engine.kind"),
        ),
        ({"success_above": 0.5}, {}, ("curation.success_above", "curation.pool.name")),
        (
            {"success_above": 0.5, "allocation": {"name": "dart", "length_slack": None}},
            {},
            ("curation.success_above", "curation.allocation.name"),
        ),
        (
            {"allocation": {"name": "dart"}, "filter": {"name": "dapo", "min_valid": 3}},
            {},
            ("curation.filter.min_valid", "curation.allocation.minimum"),
        ),
    ],
)
def test_what_makes_no_sense_names_both_keys(
    keys: dict[str, object], around: dict[str, object], names: tuple[str, str]
) -> None:
    rules = build_curation_rules(keys)
    surroundings = replace(AROUND, **around)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError) as error:
        check(rules, surroundings)
    assert all(name in str(error.value) for name in names)
    assert sum(conflict.holds(rules, surroundings) for conflict in CONFLICTS) == 1


@pytest.mark.parametrize("allocation", [FixedAllocator(), DartAllocator(), DarsAllocator()])
def test_an_allocation_of_an_unknown_task_is_the_runs_own(allocation: RolloutAllocation) -> None:
    first = allocation.first(UNSEEN, base=8, max_turns=12)
    assert (first.trajectories, first.max_turns) == (8, 12)


def test_a_saved_state_that_is_not_one_is_refused() -> None:
    data = encode(PoolState(successes={"t": (stored(0, 1),)}))
    assert decode(PoolState, data) == PoolState(successes={"t": (stored(0, 1),)})
    for wrong in ({"successes": {"t": "x"}}, {**data, "more": 1}, {"successes": {"t": [{}]}}):
        with pytest.raises(ConfigError, match="saved PoolState"):
            decode(PoolState, wrong)
