"""What a reward is for those that give credit.

Mutants seen caught: a penalty without end; trained tokens counted for sampled ones; a flaw in the
first turn overlooked; the bound of right taken for right; shaped rewards reported as raw; shaping
left out; components lost on the way to the tree's trajectory, or to the sample.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.config.learn import CriticSection, LearnSection
from agentrl.config.learning.advantage import GaeAdvantage
from agentrl.config.learning.shaping import FapoShaping, OverlongShaping
from agentrl.config.load import load_config
from agentrl.config.section import CustomMethod
from agentrl.errors import ConfigError, LearnError
from agentrl.learn.advantages.grpo import grpo
from agentrl.learn.methods import LearnMethods
from agentrl.learn.sample import TrainingGroup, TrainingSample, groups_of, spans_of
from agentrl.learn.shaping import fapo, overlong, shape_rewards
from agentrl.learn.trainer import PolicyTrainer
from agentrl.learn.turns import turn_rewards
from agentrl.trajectory import Finished, Tree
from tests.support.learning import model_of, trees_of


def sample_of(
    reward: float = 0.0, *, sampled: int = 1, prompt: int = 1, **others: object
) -> TrainingSample:
    """Return a trajectory of one turn whose sampled tokens are all too old to train."""
    n = prompt + sampled
    spoken = np.arange(n) >= prompt
    parts = {
        "mask": np.zeros(n, dtype=bool),
        "spans": spans_of(spoken, nodes=np.where(spoken, 1, 0)),
    }
    return TrainingSample(
        task_id="t",
        sample=0,
        reward=float(reward),
        token_ids=np.arange(n),
        behaviour=np.zeros(n),
        **{**parts, **others},  # pyright: ignore[reportArgumentType]
    )


@pytest.mark.parametrize(
    ("tokens", "penalty"),
    [(1, 0.0), (16384, 0.0), (18432, -0.5), (20480, -1.0), (30000, -1.0)],
)
def test_the_penalties_of_the_specification(tokens: int, penalty: float) -> None:
    assert overlong(sample_of(sampled=tokens)) == penalty
    assert overlong(sample_of(2.0, sampled=tokens), penalty=0.5) == 2.0 + penalty / 2


def test_what_is_long() -> None:
    long = sample_of(1.0, sampled=5, prompt=95)
    spoken = partial(overlong, limit_tokens=100, buffer_tokens=50)
    assert spoken(long) == 1.0
    assert spoken(long, counts="context") == 0.0


@given(st.integers(1, 40), st.integers(1, 60), st.integers(1, 20))
def test_a_longer_answer_never_earns_more(buffer: int, tokens: int, more: int) -> None:
    paid = partial(overlong, limit_tokens=40, buffer_tokens=buffer)
    short, long = (paid(sample_of(sampled=n)) for n in (tokens, tokens + more))
    assert -1 <= long <= short <= 0


FLAWED = {"first_error_turn": 0.0}


@pytest.mark.parametrize(
    ("reward", "components", "expected"),
    [
        (1.0, {}, 1.0),
        (1.0, {"first_error_turn": -1.0}, 1.0),
        (1.0, FLAWED, 0.0),
        (1.0, {"first_error_turn": 3.0, "style": -1.0}, 0.0),
        (0.0, {}, -1.0),
        (0.0, FLAWED, -1.0),
        (-5.0, {}, -1.0),
        (0.2, {"style": 3.0}, 1.0),
    ],
)
def test_fapo_pays_by_what_the_judge_said(
    reward: float, components: dict[str, float], expected: float
) -> None:
    assert fapo(sample_of(reward, components=components)) == expected


def test_fapo_in_other_words() -> None:
    knobs = {"component": "bad", "right_above": 0.5, "right": 2.0, "wrong": 0.25, "flaw": 0.5}
    rewards = [(0.5, {}), (0.6, {}), (0.6, {"bad": 0.0}), (0.6, FLAWED)]
    found = [fapo(sample_of(r, components=c), **knobs) for r, c in rewards]  # pyright: ignore[reportArgumentType]
    assert found == [0.25, 2.0, 1.5, 2.0]


@pytest.mark.parametrize(
    ("paid", "expected"),
    [
        ([(1, {}), (1, FLAWED), (0, {}), (0, {})], [1.3056, 0.2611, -0.7833, -0.7833]),
        ([(1, {}), (1, {}), (1, FLAWED), (0, {})], [0.7833, 0.7833, -0.2611, -1.3056]),
    ],
)
def test_a_flawed_one_is_pulled_up_first_and_down_later(
    paid: Sequence[tuple[float, dict[str, float]]], expected: Sequence[float]
) -> None:
    group = TrainingGroup("t", tuple(sample_of(reward, components=parts) for reward, parts in paid))
    methods = LearnMethods.from_config(LearnSection(reward_shaping=(FapoShaping(),)))
    (found,) = shape_rewards([group], methods.shapings)
    assert grpo(found.rewards) == pytest.approx(expected, abs=1e-4)


def test_one_after_the_other_and_in_their_order() -> None:
    short = OverlongShaping(limit_tokens=4, buffer_tokens=2)
    group = TrainingGroup("t", (sample_of(1.0, sampled=3), sample_of(0.0, sampled=9)))
    orders = [(FapoShaping(), short), (short, FapoShaping())]
    found = [
        shape_rewards(
            [group], LearnMethods.from_config(LearnSection(reward_shaping=order)).shapings
        )[0].rewards
        for order in orders
    ]
    assert found == [(0.5, -2.0), (1.0, -1.0)]
    assert shape_rewards([group], ()) == (group,)
    assert group.rewards == (1.0, 0.0), "the samples that were given are as they were"


def test_what_was_paid_by_turns_stays_and_the_rest_is_the_last_turns() -> None:
    spans = spans_of(np.array([False, True, True]), turns=np.array([0, 0, 1]))
    sample = sample_of(1.5, sampled=2, spans=spans, turn_rewards=(0.5, 1.0))
    (group,) = shape_rewards([TrainingGroup("t", (sample,))], [lambda s: s.reward - 1])
    assert group.rewards == (0.5,)
    assert turn_rewards(group.samples[0]).tolist() == [0.5, 0.0]


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), float("-inf")])
def test_a_reward_that_is_not_finite_is_named(reward: float) -> None:
    with pytest.raises(LearnError, match=r"task 't' sample 0: .* turned the reward 0.25"):
        shape_rewards([TrainingGroup("t", (sample_of(0.25),))], [lambda sample: reward])


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ("", "more than 16384 tokens, but engine.context_tokens is 1024"),
        ("limit_tokens: 9, buffer_tokens: 10", "buffer_tokens 10 and limit_tokens 9"),
        ("limit_tokens: 1034, buffer_tokens: 10", "more than 1024 tokens"),
    ],
)
def test_a_penalty_that_nothing_can_earn_is_refused(tmp_path: Path, keys: str, text: str) -> None:
    path = tmp_path / "x.yaml"
    section = "{name: overlong, " + keys + "}"
    path.write_text(f"env: {{id: demo/Multiply-v0}}\nlearn: {{reward_shaping: [{section}]}}\n")
    with pytest.raises(ConfigError, match=text):
        load_config(path)
    path.write_text(path.read_text().replace(section, "{name: overlong, limit_tokens: 5000}"))
    load_config(path)


# --- in the trainer -------------------------------------------------------------------------------


def with_components(tree: Tree, components: dict[int, dict[str, float]]) -> Tree:
    """Return a copy whose leaves carry these components, by sample."""
    copy = Tree(tree.task)
    for node in tree.nodes:
        copy.add(node)
    for leaf in tree.leaves:
        copy.end(replace(leaf, components=components.get(leaf.sample, {})))
    return copy


def test_components_come_from_the_leaf() -> None:
    (tree,) = trees_of(1)
    (group,) = groups_of([with_components(tree, {2: FLAWED})])
    assert [dict(s.components) for s in group.samples] == [{}, {}, FLAWED, {}]


def test_credit_is_made_of_the_shaped_reward_and_reports_of_the_raw_one() -> None:
    (tree,) = trees_of(1)
    shaping = LearnSection(reward_shaping=(FapoShaping(),))
    flawed = with_components(tree, {1: FLAWED, 2: FLAWED})
    metrics = PolicyTrainer(model_of(), shaping, seed=0).step([flawed])
    assert metrics["reward/mean"] == 1.5
    assert metrics["reward/shaped_mean"] == 0.0
    assert metrics["reward/std"] == pytest.approx(np.std([0, 1, 2, 3], ddof=1))
    paid = Tree(tree.task)
    for node in tree.nodes:
        paid.add(node)
    for leaf, reward in zip(tree.leaves, [-1.0, 0.0, 0.0, 1.0], strict=True):
        paid.end(replace(leaf, outcome=Finished(reward)))
    plain = PolicyTrainer(model_of(), LearnSection(), seed=0).step([paid])
    assert metrics["loss"] == pytest.approx(plain["loss"], rel=1e-6)
    assert "reward/shaped_mean" not in plain


def test_a_critic_learns_the_shaped_reward() -> None:
    section = LearnSection(advantage=GaeAdvantage(), critic=CriticSection())
    shaping = section.model_copy(
        update={"reward_shaping": (CustomMethod(function="tests.unit.learn.test_shaping:nothing"),)}
    )
    raw, free = (
        PolicyTrainer(model_of(), config, seed=0).step(trees_of(1)) for config in (section, shaping)
    )
    assert free["critic/loss"] < raw["critic/loss"]


def nothing(sample: TrainingSample) -> float:
    """A shaping that takes every reward away."""
    return 0.0 * sample.reward
