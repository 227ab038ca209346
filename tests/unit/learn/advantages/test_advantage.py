"""Credit of a group. Mutants applied by hand and seen caught by this file:

- ddof=1 -> ddof=0: golden GRPO numbers
- epsilon dropped: golden numbers (1.499997 would be 1.5), the knob test
- sign flipped (mean - reward): golden numbers
- std always divided / never divided: golden numbers with and without it
- singleton zero and raw swapped: singleton cases
- equal rewards go through the formula: exactly-zero property (0.1 three times leaves 1e-17)
- failed trajectories counted as reward 0: exclusion test
- credit zipped with the wrong sample: broadcast test
"""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.config.learning.advantage import GrpoAdvantage
from agentrl.config.learning.loss import PpoClipLoss
from agentrl.learn.advantage import per_trajectory
from agentrl.learn.advantages.grpo import grpo
from agentrl.learn.sample import groups_of
from agentrl.task import Task
from agentrl.trajectory import Failed, Finished, Leaf, Node, Outcome, Tree
from tests.support.learning import advantage_of

rewards_of_a_group = st.lists(st.floats(-100, 100), min_size=2, max_size=16)


def tree_of(*outcomes: Outcome, name: str = "t") -> Tree:
    """Return a group whose trajectory i samples i + 1 tokens after a prompt of two."""
    tree = Tree(Task(prompt="q", id=name))
    prompt = tree.add(Node(parent=None, source="prompt", token_ids=(1, 2), turn=0))
    for sample, outcome in enumerate(outcomes):
        n = sample + 1
        node = Node(
            parent=prompt,
            source="sampled",
            token_ids=(3,) * n,
            turn=0,
            logprobs=(-1.0,) * n,
            versions=(0,) * n,
        )
        tree.end(Leaf(node=tree.add(node), outcome=outcome, sample=sample))
    return tree


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([1.0, 0.0, 0.0, 1.0], [0.866024, -0.866024, -0.866024, 0.866024]),
        ([1.0, 0.0, 0.0, 0.0], [1.499997, -0.499999, -0.499999, -0.499999]),
        ([], []),
    ],
)
def test_grpo_divides_by_the_unbiased_deviation_plus_epsilon(
    rewards: Sequence[float], expected: Sequence[float]
) -> None:
    assert grpo(rewards) == pytest.approx(expected, abs=5e-7)


def test_epsilon_is_added_to_the_deviation() -> None:
    # std of [1, 0] is 0.707107; with epsilon 1 the advantage is 0.5 / 1.707107.
    assert grpo([1.0, 0.0], epsilon=1.0) == pytest.approx([0.292893, -0.292893], abs=1e-6)


def test_without_deviation_the_reward_is_only_centred() -> None:
    assert grpo([1.0, 0.0, 0.0, 0.0], normalise_std=False) == pytest.approx([0.75] + [-0.25] * 3)


def test_a_singleton_is_dropped_or_keeps_its_raw_reward() -> None:
    assert grpo([0.7]) == (0.0,)
    assert grpo([0.7], singleton="raw") == (0.7,)


@given(st.floats(-1e6, 1e6), st.integers(2, 12), st.booleans())
def test_equal_rewards_give_exactly_zero(reward: float, size: int, normalise_std: bool) -> None:
    assert grpo([reward] * size, normalise_std=normalise_std) == (0.0,) * size


@given(rewards_of_a_group, st.booleans())
def test_credit_of_a_group_sums_to_zero(rewards: list[float], normalise_std: bool) -> None:
    credit = grpo(rewards, normalise_std=normalise_std)
    assert math.fsum(credit) == pytest.approx(0, abs=1e-6 * max(map(abs, [1.0, *credit])))


@given(rewards_of_a_group, st.randoms(use_true_random=False))
def test_the_order_of_a_group_does_not_matter(rewards: list[float], random: st.DataObject) -> None:
    order = list(range(len(rewards)))
    random.shuffle(order)  # type: ignore[attr-defined]
    credit = grpo(rewards)
    assert grpo([rewards[i] for i in order]) == pytest.approx(
        [credit[i] for i in order], rel=1e-6, abs=1e-9
    )


@given(rewards_of_a_group)
def test_better_rewards_never_get_less_credit(rewards: list[float]) -> None:
    credit = grpo(rewards)
    order = np.argsort(rewards)
    assert all(np.diff(np.asarray(credit)[order]) >= 0)


def test_failed_trajectories_are_in_no_baseline_and_no_normaliser() -> None:
    failed = Failed("env", "it broke")
    groups = groups_of([tree_of(Finished(1.0), failed, Finished(0.0), failed)])
    credit = advantage_of(GrpoAdvantage())(groups)
    # Of [1, 0]: std 0.707107. Counted as zeros they would give 1.5 and -0.5.
    assert [c[0] for c in credit] == pytest.approx([0.707106, -0.707106], abs=1e-6)


def test_every_token_of_a_trajectory_gets_its_own_credit() -> None:
    groups = groups_of(
        [tree_of(Finished(5.0), Finished(7.0)), tree_of(Finished(1.0), name="other")]
    )
    credit = per_trajectory(lambda rewards: rewards)(groups)
    assert [c.tolist() for c in credit] == [[5.0] * 3, [7.0] * 4, [1.0] * 3]


def test_every_knob_of_the_section_reaches_the_formula() -> None:
    groups = groups_of([tree_of(Finished(1.0), Finished(0.0)), tree_of(Finished(3.0), name="o")])
    section = GrpoAdvantage(normalise_std=False, singleton="raw")
    assert [c[0] for c in advantage_of(section)(groups)] == [0.5, -0.5, 3.0]
    section = GrpoAdvantage(epsilon=1.0)
    assert advantage_of(section)(groups)[0][0] == pytest.approx(0.292893, abs=1e-6)


def test_a_section_of_another_slot_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"PpoClipLoss is not a method of this slot.*GrpoAdvantage"
    ):
        advantage_of(PpoClipLoss())
