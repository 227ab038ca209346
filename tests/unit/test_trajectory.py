"""The tree: append-only, shared prefixes, mask by construction.

Mutants seen caught: `share` appends always; `share` ignores the parent; `path_ids` not reversed;
`trajectory` takes log-probs of given nodes; `mask` true for `forced`; a branch that shows an image
shows it in its sibling too; a context counts a withdrawn node; images keep the places they had
before a withdrawal; a walk to the root at every turn, also without a call; images copied into every
node; a log-prob that no float32 holds ends the run.
"""

import asyncio
import math
import struct
import sys
import tracemalloc
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.message import Image, ImageSpan
from agentrl.task import Task
from agentrl.trajectory import (
    Failed,
    Finished,
    Leaf,
    Node,
    PackedTokens,
    Source,
    Tree,
    Truncated,
    reward_of,
)
from benchmarks.overhead import IMAGE, episode

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
        ({"source": "tool", "logprobs": (-1.0, -1.0), "versions": (0, 0)}, "expected 0"),
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


@given(
    st.lists(
        st.tuples(
            st.integers(0, 30),
            st.sampled_from(("tool", "prompt", "sampled", "forced", "anew")),
            st.integers(0, 3),
            st.booleans(),
        ),
        min_size=1,
        max_size=30,
    )
)
def test_a_context_and_its_images_are_what_a_walk_from_the_root_finds(
    events: list[tuple[int, str, int, bool]],
) -> None:
    tree = Tree(TASK)
    for at, kind, tokens, shows in events:
        parent = None if not tree.nodes else at % len(tree.nodes)
        tree.add(_context_node(tree, parent, kind, tokens=tokens, shows=shows))
    for id in range(len(tree.nodes)):
        context = _walked_context(tree, id)
        assert tree.context(id) == tuple(context)
        assert tree.context_nodes(id) == len(context)
        assert tree.images(id) == _walked_images(context)
        assert tree.image_count(id) == len(tree.images(id))
        first = next(n for n, node in enumerate(tree.nodes) if node == tree.node(id))
        if tree.node(id).source == "prompt":
            assert tree.share(tree.node(id)) == first


def _context_node(tree: Tree, parent: int | None, kind: str, *, tokens: int, shows: bool) -> Node:
    ids = (7,) * tokens
    if kind == "sampled":
        return sampled(parent, *ids)
    withdraws = 0
    if parent is not None and kind == "forced":
        withdraws = int(tree.node(parent).source == "sampled")
    if parent is not None and kind == "anew":
        withdraws = len(_walked_context(tree, parent))
    is_shown = shows and tokens > 1
    sources: dict[str, Source] = {"tool": "tool", "forced": "forced"}
    return Node(
        parent=parent,
        source=sources.get(kind, "prompt"),
        token_ids=ids,
        turn=0,
        images=(IMAGE,) * is_shown,
        image_spans=((1, tokens),) * is_shown,
        withdraws=withdraws,
    )


def _walked_context(tree: Tree, id: int) -> list[Node]:
    context: list[Node] = []
    for node in tree.path(id):
        if node.withdraws:
            del context[-node.withdraws :]
        context.append(node)
    return context


def _walked_images(context: list[Node]) -> tuple[ImageSpan, ...]:
    start, spans = 0, list[ImageSpan]()
    for node in context:
        for image, (first, stop) in zip(node.images, node.image_spans, strict=True):
            spans.append(ImageSpan(image, start + first, start + stop))
        start += len(node.token_ids)
    return tuple(spans)


@pytest.mark.parametrize("image", [None, IMAGE])
def test_a_turn_takes_as_many_steps_in_a_long_episode_as_in_a_short_one(
    image: Image | None,
) -> None:
    """Lines are counted, those of loops again and again: the same on every machine."""
    short, long = (_lines(turns, image) for turns in (8, 512))
    assert long / 512 <= short / 8


def _lines(turns: int, image: Image | None) -> int:
    lines = 0

    def count(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    async def play() -> None:
        before = sys.gettrace()
        sys.settrace(count)
        try:
            await episode(turns, image=image).run()
        finally:
            sys.settrace(before)

    asyncio.run(play())
    return lines


def test_images_of_a_long_episode_take_memory_for_each_turn_once() -> None:
    short, long = (_tree_bytes(turns) for turns in (256, 1024))
    assert long < 6 * short, "four times the turns, four times the memory"


def _tree_bytes(turns: int) -> int:
    tracemalloc.start()
    try:
        tree, at = Tree(TASK), None
        for turn in range(turns):
            node = Node(
                parent=at,
                source="tool",
                token_ids=(1, 2),
                turn=turn,
                images=(IMAGE,),
                image_spans=((0, 1),),
            )
            at = tree.add(node)
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def test_a_tree_that_is_read_back_has_the_ids_it_had() -> None:
    """Whatever was read first; an id of which nothing was read is vacant."""
    tree = Tree(TASK)
    prompt = Node(parent=None, source="prompt", token_ids=(1, 2), turn=0)
    tree.restore(0, prompt)
    tree.restore(3, sampled(0, 7))
    assert [tree.tokens(3), tree.node(2).token_ids] == [(1, 2, 7), ()]
    tree.restore(1, sampled(0, 5))
    tree.restore(1, sampled(0, 6))
    assert tree.tokens(1) == (1, 2, 5), "what is there stays"
    assert tree.share(prompt) == 0
    assert tree.add(sampled(3, 8)) == 4
    assert tree.tokens(4) == (1, 2, 7, 8)
    with pytest.raises(ValueError, match="parent 2 of node 5 is vacant; restore it first"):
        tree.restore(5, sampled(2, 9))


def sampled_node(token_ids: tuple[int, ...], logprob: float = -1.0, version: int = 0) -> Node:
    n = len(token_ids)
    return Node(
        parent=None,
        source="sampled",
        token_ids=token_ids,
        turn=0,
        logprobs=(logprob,) * n,
        versions=(version,) * n,
    )


def test_packed_tokens_golden() -> None:
    tree = Tree(TASK)
    prompt, sampled = tree.add(given_node(None, 1, 2)), tree.add(sampled_node((3, 70_000), -0.5, 7))
    assert tree.packed(prompt) == PackedTokens(struct.pack("2i", 1, 2), b"", ((-1, 2),))
    assert tree.packed(sampled) == PackedTokens(
        struct.pack("2i", 3, 70_000), struct.pack("2f", -0.5, -0.5), ((7, 2),)
    )


@pytest.mark.parametrize(
    ("logprob", "packed"),
    [(-1e39, -math.inf), (1e300, math.inf), (-math.inf, -math.inf), (-3e38, -3e38), (-0.1, -0.1)],
)
def test_a_logprob_that_no_float32_holds_is_infinite(logprob: float, packed: float) -> None:
    (found, _) = struct.unpack("2f", PackedTokens.from_node(sampled_node((1, 2), logprob)).logprobs)
    assert found == pytest.approx(packed, rel=1e-7)
    (unknown,) = struct.unpack("f", PackedTokens.from_node(sampled_node((1,), math.nan)).logprobs)
    assert math.isnan(unknown)


@pytest.mark.parametrize("node", [given_node(None, 2**31), sampled_node((1,), version=2**31)])
def test_a_number_that_is_no_int32_is_refused_and_nothing_is_added(node: Node) -> None:
    tree = Tree(TASK)
    with pytest.raises(ValueError, match="no integer of 32 bits"):
        tree.add(node)
    assert tree.nodes == ()
    assert tree.add(given_node(None, 2**31 - 1)) == 0
