"""Rewards that a whole group decides: votes, and a function of yours.

Mutants seen caught: ties by the order of the answers' texts; a vote of those without an answer; a
group whose rewards are NaN that trains; a fault that ends the run; what the environment paid by
turns kept; DARE without dropping, with the count of the dropped, with a negative bonus; rewards
before the entropies are known; votes refused for nobody.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.config.learn import LearnSection
from agentrl.config.learning.group_reward import DareReward, MajorityReward
from agentrl.config.load import load_config
from agentrl.config.section import CustomMethod
from agentrl.errors import ConfigError, LearnError
from agentrl.learn.batch import TrainingBatch
from agentrl.learn.group_reward import dare, majority, reward_groups
from agentrl.learn.sample import TrainingGroup, TrainingSample, groups_of, spans_of
from agentrl.learn.trainer import PolicyTrainer
from agentrl.run import build
from agentrl.trajectory import Tree
from tests.support.learning import model_of, trees_of


def group_of(*answers: str | None, entropies: Sequence[float] = ()) -> TrainingGroup:
    """Return a group of these answers, none of which the environment paid for."""
    given = entropies or [1.0] * len(answers)
    return TrainingGroup(
        "t",
        tuple(
            TrainingSample(
                task_id="t",
                sample=at,
                reward=0.0,
                token_ids=np.arange(3),
                mask=np.array([False, True, True]),
                behaviour=np.zeros(3),
                spans=spans_of(np.array([False, True, True]), nodes=np.array([0, 1, 1])),
                entropies=np.array([math.nan, entropy - 0.1, entropy + 0.1]),
                answer=answer,
            )
            for at, (answer, entropy) in enumerate(zip(answers, given, strict=True))
        ),
    )


@pytest.mark.parametrize(
    ("answers", "rewards"),
    [
        (("a", "b", "b"), (0, 1, 1)),
        (("b", "a", "a", "b"), (1, 0, 0, 1)),
        ((None, None, "z"), (0, 0, 1)),
        ((None, None), (0, 0)),
        (("a", "b", "c"), (1, 0, 0)),
    ],
)
def test_the_majority_is_paid(answers: tuple[str | None, ...], rewards: tuple[int, ...]) -> None:
    assert majority(group_of(*answers)) == rewards


EIGHT = ("A", "A", "A", "A", "B", "B", "B", "C")
UNSURE = (0.5, 0.4, 0.6, 0.5, 0.25, 0.2, 0.3, 0.9)


def test_dare_pays_as_in_the_worked_example() -> None:
    eight = group_of(*EIGHT, entropies=UNSURE)
    shares = [0.378947] * 4 + [0.568421] * 3 + [0.052632]
    assert dare(eight) == pytest.approx(shares, abs=1e-6)
    dropped = [0.4] * 4 + [0.6] * 3 + [0.0]
    assert dare(eight, minimum_share=0.1) == pytest.approx(dropped, abs=1e-6)
    paid = [0.421429] * 4 + [0.642857] * 3 + [0.0]
    assert dare(eight, minimum_share=0.1, rarity_bonus=0.1) == pytest.approx(paid, abs=1e-6)


def test_dare_pays_nobody_for_no_answer_or_more_than_a_nat() -> None:
    found = dare(group_of("a", None, "b", entropies=(3.0, 0.1, 3.0)), rarity_bonus=1.0)
    assert found == pytest.approx((0.5, 0.0, 0.5), abs=1e-6)
    assert dare(group_of("a", "b", "c"), minimum_share=0.9) == (0.0, 0.0, 0.0)


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=12))
def test_dare_with_equal_entropies_pays_the_share_of_votes(answers: list[str]) -> None:
    found = dare(group_of(*answers))
    assert found == pytest.approx([answers.count(one) / len(answers) for one in answers])


def test_an_answer_of_which_nothing_trains_has_no_entropy_and_its_group_no_rewards() -> None:
    group = group_of("a", "b")
    silent = replace(group.samples[0], mask=np.zeros(3, dtype=bool))
    broken = replace(group, samples=(silent, group.samples[1]))
    rewarded = reward_groups([broken, group], dare)
    assert rewarded.places == (1,)
    assert "task 't' sample 0: its reward is nan" in rewarded.faults[0]


@pytest.mark.parametrize(
    ("rewards", "fault"),
    [([1.0], "1 rewards for 2 trajectories"), ([0.0, math.inf], "sample 1: its reward is inf")],
)
def test_a_group_fails_where_the_function_does(rewards: list[float], fault: str) -> None:
    good, bad = group_of("a", "b"), replace(group_of("a", "b"), task_id="bad")
    found = reward_groups([bad, good], lambda g: rewards if g.task_id == "bad" else [0.5, 1.0])
    assert found.places == (1,)
    assert [group.rewards for group in found.groups] == [(0.5, 1.0)]
    assert "'bad'" in found.faults[0]
    assert fault in found.faults[0]
    with pytest.raises(LearnError, match=r"learn\.group_reward failed for all 1 groups"):
        reward_groups([bad], lambda g: rewards)


def test_what_the_environment_paid_by_turns_is_replaced_too() -> None:
    group = group_of("a", "b")
    paid = replace(group, samples=tuple(replace(s, turn_rewards=(1.0,)) for s in group.samples))
    (found,) = reward_groups([paid], majority).groups
    assert [sample.turn_rewards for sample in found.samples] == [(), ()]


# In the trainer.


def with_answers(tree: Tree, *answers: str | None) -> Tree:
    """Return a copy whose trajectories gave these answers, by sample."""
    copy = Tree(tree.task)
    for node in tree.nodes:
        copy.add(node)
    for leaf in tree.leaves:
        copy.end(replace(leaf, answer=answers[leaf.sample]))
    return copy


def test_answers_come_from_the_leaf() -> None:
    (tree,) = trees_of(1)
    (group,) = groups_of([with_answers(tree, "a", None, "b", "b")])
    assert [sample.answer for sample in group.samples] == ["a", None, "b", "b"]


@pytest.mark.parametrize("section", [MajorityReward(), DareReward()])
def test_votes_train_and_reports_tell_what_the_environment_paid(
    section: MajorityReward | DareReward,
) -> None:
    (tree,) = trees_of(1)  # paid 0, 1, 2 and 3
    trainer = PolicyTrainer(model_of(), LearnSection(group_reward=section), seed=0)
    metrics = trainer.step([with_answers(tree, "a", "b", "b", "b")])
    assert metrics["reward/mean"] == 1.5
    assert metrics["group_reward/top_env_reward"] == 2.0
    assert metrics["group_reward/failed_groups"] == 0
    assert metrics["reward/shaped_mean"] < 1
    assert metrics["advantage/zero_fraction"] == 0


def half_broken(group: TrainingGroup) -> list[float]:
    """Fail for the second task."""
    rewards = list(group.rewards)
    return rewards[1:] if group.task_id.endswith("1") else rewards


def test_the_other_groups_train_as_if_the_failed_one_had_not_been_there() -> None:
    name = "tests.unit.learn.test_group_reward:half_broken"
    section = LearnSection(group_reward=CustomMethod(function=name))
    trees = list(trees_of(2))
    both = PolicyTrainer(model_of(), section, seed=0)
    metrics = both.step(trees)
    one = PolicyTrainer(model_of(), LearnSection(), seed=0).step(trees[:1])
    assert metrics["group_reward/failed_groups"] == 1
    assert metrics["batch/failed"] == len(trees[1].leaves)
    assert metrics["batch/groups"] == 1
    assert metrics["loss"] == pytest.approx(one["loss"], rel=1e-6)
    assert metrics["grad/norm"] == pytest.approx(one["grad/norm"], rel=1e-6)


def test_a_batch_keeps_the_trees_of_its_groups() -> None:
    batch = TrainingBatch.from_trees(trees_of(3))
    kept = batch.keep_groups((0, 2))
    assert kept.owners == (0, 2)
    assert kept.groups == (batch.groups[0], batch.groups[2])


# At load.


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("rollout: {group_size: 1}", "but rollout.group_size is 1"),
        ("curation: {filter: {name: dapo}}", "curation.filter.name is dapo"),
        ("curation: {sampler: {name: vade}}\nenv: {task_limit: 500}", "curation.sampler.name"),
        ("curation: {members: {name: balanced, most: 4}}", "curation.members.name is balanced"),
    ],
)
def test_votes_refuse_what_looks_at_the_environments_reward(
    tmp_path: Path, text: str, fault: str
) -> None:
    path = tmp_path / "x.yaml"
    env = "" if "env:" in text else "env: {id: demo/Multiply-v0}\n"
    text = text.replace("env: {", "env: {id: demo/Multiply-v0, ")
    path.write_text(f"{env}{text}\nlearn: {{group_reward: {{name: majority}}}}\n")
    with pytest.raises(ConfigError, match=fault):
        load_config(path)


def test_votes_refuse_an_environment_without_answers(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(
        "env: {id: code/Mix-v0, kwargs: {families: chain_sum}}\n"
        "learn: {group_reward: {name: dare}}\n"
    )
    config = load_config(path)
    build.check_reports(config, build.build_env_factory(config, plays=False)())
    with pytest.raises(
        ConfigError, match=r"learn\.group_reward\.name is dare, .*code/Mix-v0 reports"
    ):
        build.check_reports(config, object())  # pyright: ignore[reportArgumentType]
