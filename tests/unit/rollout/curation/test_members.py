"""Which trajectories of a group train: both outcomes kept, short failures left out, the rest drawn.

Mutants seen caught: one fewer kept; no success or no failure held; short successes left out, or a
failure of just enough turns; what a success is ignored; one draw for all groups; failures taken out
of trees; what is left out counted as trained; the verdict on the whole group; trees not cut, here
or behind the gate; a loan that is no member; a group that waits behind the gate forgotten.
"""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import ConfigError
from agentrl.rollout.curation.allocation import DartAllocator
from agentrl.rollout.curation.dapo import DynamicSamplingFilter, NothingToLearn
from agentrl.rollout.curation.group_curation import GroupCuration
from agentrl.rollout.curation.members import BalancedRollouts
from agentrl.rollout.curation.outcomes import GroupOutcome, RolloutSummary
from agentrl.rollout.curation.rules import (
    CurationContext,
    CurationRules,
    build_curation_rules,
    conflicts,
)
from agentrl.rollout.curation.success_pool import SuccessPool
from agentrl.rollout.scheduler.topology import GroupProgress, RolloutKey
from agentrl.store.trajectory_copy import keep_members
from agentrl.task import Task
from agentrl.trajectory import Finished, Tree, reward_of
from tests.support.curating import Score, curator, filled, play_step, tokens_of
from tests.unit.rollout.curation.test_gate import MODES, Mode, Rig
from tests.unit.rollout.curation.test_step import by_number

AROUND = CurationContext(group_size=12, tasks_per_step=8, tasks=100)


def result(sample: int, reward: float | None, *, turns: int = 5) -> RolloutSummary:
    return RolloutSummary(sample=sample, reward=reward, tokens=10, turns=turns, version=0)


def group(*results: RolloutSummary, ordinal: int = 0) -> GroupOutcome:
    return GroupOutcome(step=0, ordinal=ordinal, task_id="t", asked=len(results), results=results)


def chosen(rule: BalancedRollouts, held: GroupOutcome, seed: int = 0) -> frozenset[int]:
    return rule.choose_samples(held, seed=seed, success_above=0.0)


def test_darts_cut_keeps_the_only_success_and_the_only_failure() -> None:
    one_won = group(*(result(i, float(i == 11)) for i in range(12)))
    one_lost = group(*(result(i, float(i != 3)) for i in range(12)))
    for held, only in ((one_won, 11), (one_lost, 3)):
        for seed in range(50):
            kept = chosen(BalancedRollouts(), held, seed)
            assert only in kept
            assert len(kept) == 8


def test_darts_code_stores_no_failure_of_fewer_than_four_steps() -> None:
    held = group(
        result(0, 0.0, turns=3), result(1, 0.0, turns=4), result(2, 1.0, turns=1), result(3, 1.0)
    )
    assert chosen(BalancedRollouts(min_failed_turns=4), held) == {1, 2, 3}
    assert chosen(BalancedRollouts(), held) == {0, 1, 2, 3}


def test_what_broke_is_nobodys_and_what_is_success_is_for_the_config_to_say() -> None:
    held = group(result(0, None, turns=0), result(1, 0.5, turns=1), result(2, 0.0, turns=1))
    assert chosen(BalancedRollouts(min_failed_turns=4), held) == {1}
    assert (
        BalancedRollouts(min_failed_turns=4).choose_samples(held, seed=0, success_above=0.5)
        == frozenset()
    )


@given(
    st.lists(st.tuples(st.sampled_from([None, 0.0, 1.0]), st.integers(0, 6)), max_size=16),
    st.integers(2, 10),
    st.integers(0, 5),
    st.integers(0, 2**32),
    st.randoms(use_true_random=False),
)
def test_a_cut_group_has_both_outcomes_no_short_failure_and_no_order(
    ends: list[tuple[float | None, int]], most: int, least: int, seed: int, random: Random
) -> None:
    results = [result(i, reward, turns=turns) for i, (reward, turns) in enumerate(ends)]
    rule = BalancedRollouts(most=most, min_failed_turns=least)
    kept = chosen(rule, group(*results), seed)
    able = {r.sample for r in results if r.reward or (r.reward == 0 and r.turns >= least)}
    assert kept <= able
    assert len(kept) == min(most, len(able))
    won = {r.sample for r in results if r.reward}
    for side in (won, able - won):
        assert not side or kept & side
    random.shuffle(results)
    assert chosen(rule, group(*results), seed) == kept


def test_who_goes_is_drawn_anew_for_every_group() -> None:
    rewards = [float(i % 2) for i in range(12)]
    found = {
        chosen(BalancedRollouts(), group(*map(result, range(12), rewards), ordinal=ordinal))
        for ordinal in range(20)
    }
    assert len(found) > 10
    everybody = frozenset[int]().union(*found)
    assert everybody == {*range(12)}


def test_a_tree_keeps_its_members_its_failures_and_its_nodes() -> None:
    score: Score = lambda step, task, sample: None if sample == 3 else float(sample)  # noqa: E731
    tree = filled(Tree(Task(prompt="t0", id="t0")), 4, 0, 0, score)
    cut = keep_members(tree, {1})
    assert [leaf.sample for leaf in cut.leaves] == [1, 3]
    assert cut.nodes == tree.nodes
    assert [leaf.sample for leaf in tree.leaves] == [0, 1, 2, 3]
    assert keep_members(tree, {0, 1, 2}) is tree


# In a step


def test_a_step_trains_on_the_cut_and_learns_from_all() -> None:
    rules = CurationRules(
        allocation=DartAllocator(),
        members=BalancedRollouts(most=3),
        filter=DynamicSamplingFilter(),
        pool=SuccessPool(),
    )
    score: Score = lambda step, task, sample: float(sample == 4)  # noqa: E731
    who = curator(rules, group_size=6)
    curated, _ = play_step(who, 3, score)
    samples = [{leaf.sample for leaf in tree.leaves} for tree in curated.trees]
    assert all(len(kept) == 3 and 4 in kept for kept in samples)
    assert curated.figures["curation/members_left_out"] == 9
    left = sum(
        tokens_of(tree.task.id, sample)
        for tree in curated.trees
        for sample in {*range(6)} - {leaf.sample for leaf in tree.leaves}
    )
    assert curated.figures["curation/tokens_wasted"] == left
    assert {len(who.state.records[task.task.id].recent) for task in curated.trees} == {6}


def test_a_group_that_is_left_with_one_outcome_is_dropped_by_the_filter() -> None:
    rules = CurationRules(
        members=BalancedRollouts(most=4, min_failed_turns=50), filter=DynamicSamplingFilter()
    )
    score: Score = lambda step, task, sample: float(sample % 2)  # noqa: E731
    with pytest.raises(NothingToLearn):
        play_step(curator(rules), 2, score)


def test_a_loan_is_a_member_like_any_success() -> None:
    rules = CurationRules(
        members=BalancedRollouts(most=2), filter=DynamicSamplingFilter(), pool=SuccessPool()
    )
    who = curator(rules, tasks=2, group_size=16)
    first: Score = lambda step, task, sample: float(step == 0 and sample == 1)  # noqa: E731
    play_step(who, 2, first)
    curated, _ = play_step(who, 2, first)
    assert len(curated.loans) == 2
    assert curated.figures["curation/rounds"] == 1
    for tree, loan in zip(curated.trees, curated.loans, strict=True):
        rewards = [leaf.outcome for leaf in tree.leaves]
        assert len(rewards) == 2
        assert Finished(1.0) in rewards
        assert loan.result.sample in {leaf.sample for leaf in tree.leaves}


def test_tokens_are_conserved_and_seeds_decide() -> None:
    rules = CurationRules(members=BalancedRollouts(most=2), filter=DynamicSamplingFilter())
    one, other = curator(rules, group_size=6), curator(rules, group_size=6)
    for _ in range(4):
        (a, log), (b, _) = play_step(one, 2, by_number), play_step(other, 2, by_number)
        assert [t.leaves for t in a.trees] == [t.leaves for t in b.trees]
        assert a.figures == b.figures
        asked = sum(tokens_of(ask.task.id, i) for ask in log.asks for i in range(6))
        trained = sum(tokens_of(t.task.id, leaf.sample) for t in a.trees for leaf in t.leaves)
        assert asked == trained + a.figures["curation/tokens_wasted"]
        assert {len(t.leaves) for t in a.trees} == {2}


# Behind a gate


@pytest.mark.parametrize("mode", MODES)
async def test_behind_the_gate_a_batch_is_cut_and_what_broke_stays(mode: Mode) -> None:
    rules = CurationRules(
        members=BalancedRollouts(most=2), filter=DynamicSamplingFilter(), pool=SuccessPool()
    )
    for curated in await Rig(rules, mode, group_size=6).steps(3):
        for tree in curated.trees:
            rewards = [reward_of(leaf.outcome) for leaf in tree.leaves]
            assert sorted(r for r in rewards if r is not None) == [0.0, 1.0]
            assert rewards.count(None) == 1
        assert curated.figures["curation/members_left_out"] == 3 * curated.figures["curation/kept"]


def test_behind_the_gate_a_group_that_waits_is_cut_when_it_trains() -> None:
    rules = CurationRules(members=BalancedRollouts(most=2), filter=DynamicSamplingFilter())
    curation = GroupCuration(curator=curator(rules, tasks=2, group_size=6), wanted=1)
    trees: list[Tree] = []
    orders = curation.tasks(2)
    curation.flying = lambda: [order.task for order in orders]
    for number, order in enumerate(orders):
        tree = Tree(order.task)
        trees.append(filled(tree, 6, 0, 0, lambda step, task, sample: float(sample % 2)))
        curation.hooks.on_finished(
            RolloutKey(group=number, sample=0), trees[-1], trees[-1].leaves[0]
        )
        assert curation.hooks.on_group(GroupProgress(number=number, target=6), trees[-1].leaves)
    for tree in trees:
        (cut,) = curation.batch([tree]).trees
        assert [len(cut.leaves), len(tree.leaves)] == [2, 6]


# In a config


def test_the_slot_is_there_and_says_what_it_cannot_do() -> None:
    assert build_curation_rules({"members": {"name": "all"}}).does_nothing
    assert build_curation_rules({"members": {"name": "balanced", "most": 6}}) == CurationRules(
        members=BalancedRollouts(most=6)
    )
    with pytest.raises(ConfigError, match=r"members.most is 1.*at least 2"):
        build_curation_rules({"members": {"name": "balanced", "most": 1}})
    few = CurationRules(members=BalancedRollouts(most=2), filter=DynamicSamplingFilter(min_valid=3))
    (said,) = conflicts(few, AROUND)
    assert "curation.members.most is below curation.filter.min_valid" in said
    assert not conflicts(replace(few, members=BalancedRollouts(most=3)), AROUND)
    assert not conflicts(CurationRules(members=BalancedRollouts(), success_above=0.5), AROUND)
