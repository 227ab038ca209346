"""The tree: append-only, shared prefixes, mask by construction.

Mutants seen caught: `share` appends always; `share` ignores the parent; `path_ids` not reversed;
`trajectory` takes log-probs of given nodes; `mask` true for `forced`.
"""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.task import Task
from agentrl.trajectory import (
    Failed,
    Finished,
    Leaf,
    Node,
    Source,
    Tree,
    Truncated,
    reward_of,
)

TASK = Task(prompt="What is 2 + 2?", answer="4")
GIVEN: tuple[Source, ...] = ("prompt", "tool", "template", "forced")


def given_node(parent: int | None, *tokens: int, source: Source = "prompt") -> Node:
    return Node(parent=parent, source=source, token_ids=tokens, turn=0)


def sampled(parent: int | None, *tokens: int, version: int = 0) -> Node:
    return Node(
        parent=parent,
        source="sampled",
        token_ids=tokens,
        logprobs=tuple(-float(t) for t in tokens),
        versions=(version,) * len(tokens),
        turn=0,
    )


def test_a_trajectory_is_the_flattened_path() -> None:
    tree = Tree(TASK)
    root = tree.add(given_node(None, 1, 2))
    turn = tree.add(sampled(root, 3, 4, version=7))
    tool = tree.add(given_node(turn, 5, source="tool"))
    end = tree.add(sampled(tool, 6, version=8))
    tree.end(Leaf(node=end, outcome=Finished(1.0), sample=0, turn_rewards=(0.0, 1.0)))
    (trajectory,) = tree.trajectories()
    assert trajectory.token_ids == (1, 2, 3, 4, 5, 6)
    assert trajectory.mask == (False, False, True, True, False, True)
    assert trajectory.logprobs == (0.0, 0.0, -3.0, -4.0, 0.0, -6.0)
    assert trajectory.versions == (-1, -1, 7, 7, -1, 8)


def test_an_equal_prompt_is_stored_once_and_a_branch_shares_it() -> None:
    tree = Tree(TASK)
    root = tree.share(given_node(None, 1, 2))
    assert tree.share(given_node(None, 1, 2)) == root
    assert tree.share(given_node(None, 1, 3)) != root
    assert tree.share(given_node(root, 1, 2)) != root
    one, two = tree.add(sampled(root, 3)), tree.add(sampled(root, 3))
    assert one != two, "equal samples are different events"
    assert tree.tokens(one) == tree.tokens(two) == (1, 2, 3)


def test_samples_come_in_their_own_order_whatever_ended_first() -> None:
    tree = Tree(TASK)
    root = tree.add(given_node(None, 1))
    for sample in (2, 0, 1):
        tree.end(Leaf(node=tree.add(sampled(root, sample)), outcome=Finished(0.0), sample=sample))
    assert [t.token_ids[-1] for t in tree.trajectories()] == [0, 1, 2]


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ({"source": "sampled"}, "0 log-probs"),
        ({"source": "tool", "logprobs": (-1.0, -1.0), "versions": (0, 0)}, "wanted 0"),
        ({"source": "sampled", "logprobs": (-1.0,), "versions": (0, 0)}, "1 log-probs"),
        (
            {
                "source": "sampled",
                "logprobs": (-1.0, -1.0),
                "versions": (0, 0),
                "entropies": (0.1,),
            },
            "1 entropies",
        ),
    ],
)
def test_a_node_refuses_tokens_without_their_record(broken: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Node(parent=None, token_ids=(1, 2), turn=0, **broken)


def test_unknown_parents_and_leaves_are_refused() -> None:
    tree = Tree(TASK)
    with pytest.raises(ValueError, match="parent 3"):
        tree.add(given_node(3, 1))
    with pytest.raises(ValueError, match="node 0"):
        tree.end(Leaf(node=0, outcome=Finished(1.0), sample=0))


def test_a_failure_has_no_reward() -> None:
    assert reward_of(Finished(0.5)) == 0.5
    assert reward_of(Truncated("turns", 0.25)) == 0.25
    assert reward_of(Failed("tool", "broke")) is None


def test_a_failure_before_the_prompt_is_a_trajectory_without_tokens() -> None:
    tree = Tree(TASK)
    tree.end(Leaf(node=None, outcome=Failed("env", "reset broke"), sample=0))
    (trajectory,) = tree.trajectories()
    assert trajectory.token_ids == ()
    assert trajectory.mask == ()


@given(
    st.lists(
        st.tuples(
            st.integers(0, 30),
            st.sampled_from(("sampled", *GIVEN)),
            st.lists(st.integers(0, 99), max_size=4),
        ),
        min_size=1,
        max_size=30,
    )
)
def test_children_extend_their_parent_and_only_samples_train(
    events: list[tuple[int, Source, list[int]]],
) -> None:
    tree = Tree(TASK)
    for at, source, tokens in events:
        parent = None if not tree.nodes else at % len(tree.nodes)
        if source == "sampled":
            node = sampled(parent, *tokens)
        else:
            node = given_node(parent, *tokens, source=source)
        before = None if parent is None else tree.tokens(parent)
        known = tree.add(node)
        assert tree.tokens(known) == (before or ()) + tuple(tokens)
        tree.end(Leaf(node=known, outcome=Finished(0.0), sample=known))
    for trajectory in tree.trajectories():
        lengths = {
            len(trajectory.token_ids),
            len(trajectory.mask),
            len(trajectory.logprobs),
            len(trajectory.versions),
            len(trajectory.turns),
        }
        assert len(lengths) == 1
        for trains, version, logprob in zip(
            trajectory.mask, trajectory.versions, trajectory.logprobs, strict=True
        ):
            assert trains == (version >= 0)
            assert trains or logprob == 0.0
