"""How alike trajectories are, in runs of four tokens.

Seen caught: another tree of the same task taken for another task; prompts counted; likeness of the
first alone; what is too short kept.
"""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.metrics.similarity import likeness_figures
from agentrl.task import Task
from agentrl.trajectory import Finished, Leaf, Node, Tree


def tree_of(task: str, *said: Sequence[int]) -> Tree:
    """Return a tree whose trajectories say these tokens, each behind a prompt of its own."""
    tree = Tree(Task(prompt=task))
    for sample, tokens in enumerate(said):
        zeros = (0.0,) * len(tokens)
        prompt = tree.add(Node(parent=None, source="prompt", token_ids=(9,) * 8, turn=0))
        node = Node(
            parent=prompt,
            source="sampled",
            token_ids=tuple(tokens),
            turn=0,
            logprobs=zeros,
            versions=(0,) * len(tokens),
        )
        tree.end(Leaf(node=tree.add(node), outcome=Finished(1.0), sample=sample))
    return tree


def test_runs_are_compared() -> None:
    """1234 and 2345 against 1234 and 2346: one run of three in common."""
    found = likeness_figures(
        [tree_of("a", (1, 2, 3, 4, 5), (1, 2, 3, 4, 6)), tree_of("b", (7,) * 5, (1, 2, 3, 4, 6))]
    )
    assert found["likeness/same_task"] == pytest.approx((1 / 3 + 0) / 2)
    # a's first with b's first, a's second with b's second, and both the other way round.
    assert found["likeness/other_task"] == pytest.approx((0 + 1 + 0 + 1) / 4)


def test_one_template_for_all_is_a_likeness_of_one() -> None:
    trees = [tree_of(name, *[(1, 2, 3, 4, 5)] * 2) for name in "abc"]
    assert likeness_figures(trees) == {"likeness/same_task": 1.0, "likeness/other_task": 1.0}


def test_trees_of_one_task_are_not_of_different_tasks() -> None:
    twice = [tree_of("a", (1, 2, 3, 4)), tree_of("a", (1, 2, 3, 4))]
    assert likeness_figures(twice) == {}
    assert likeness_figures(twice[:1]) == {}
    assert likeness_figures([]) == {}


def test_what_is_too_short_is_left_out() -> None:
    trees = [tree_of("a", (1, 2, 3)), tree_of("b", (1, 2, 3, 4))]
    assert likeness_figures(trees) == {}
    empty = Tree(Task(prompt="c"))
    empty.end(Leaf(node=None, outcome=Finished(0.0), sample=0))
    assert likeness_figures([empty, *trees]) == {}


@given(
    st.lists(
        st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=12), min_size=1, max_size=4),
        min_size=1,
        max_size=4,
    )
)
def test_likeness_is_a_share(said: list[list[list[int]]]) -> None:
    trees = [tree_of(f"t{number}", *own) for number, own in enumerate(said)]
    found = likeness_figures(trees)
    assert all(0 <= value <= 1 for value in found.values())
