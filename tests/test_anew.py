"""Conversations begun anew: what is left behind trains where it was said, and is seen no more.

Mutants seen caught: the context kept; a run that begins after the first node, or ends early; a
prompt that withdraws less; nodes withdrawn twice in a context; a beginning lost in the store or in
the fingerprint; two beginnings of one place taken for one; tokens left behind not counted.
"""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentrl.config.learn import LearnSection
from agentrl.engine.scripted import ScriptedEngine
from agentrl.env import Action, Observation, Step
from agentrl.learn.contexts import contexts
from agentrl.learn.sample import Sample, sample_of
from agentrl.learn.trainer import Trainer
from agentrl.message import Message
from agentrl.rollout.episode import Episode, EpisodeLimits
from agentrl.rollout.replay import fingerprint
from agentrl.store.codec import pack, unpack
from agentrl.task import Task
from agentrl.trajectory import Finished, Leaf, Node, Tree, Truncated
from benchmarks.letters import LetterChat
from tests.learning import model_of
from tests.test_patch import saying, text_of
from tests.test_rollout import TASK, Echo


class Forgets(Echo):
    """Begins anew after each turn that says `new`."""

    async def step(self, action: Action) -> Step:
        if action.text != "new":
            return await super().step(action)
        return Observation((Message("user", "cd"),), tools=(), anew=True), 0.1, False, False, {}


async def play(*turns: str, seen: list[str], context_tokens: int = 100) -> tuple[Episode, Leaf]:
    episode = Episode(
        env=Forgets(),
        engine=ScriptedEngine(saying(*turns, seen=seen)),
        chat=LetterChat(),
        tree=Tree(TASK),
        sample=0,
        seed=1,
        limits=EpisodeLimits(max_turns=6, context_tokens=context_tokens),
    )
    leaf = await episode.run()
    episode.tree.end(leaf)
    return episode, leaf


async def test_what_was_said_before_is_seen_no_more_and_trains_where_it_was_said() -> None:
    seen: list[str] = []
    episode, leaf = await play("hi", "new", "ho", "new", "done", seen=seen)
    assert seen == ["ab>", "ab>hi.ok>", "cd>", "cd>ho.ok>", "cd>"]
    assert leaf.outcome == Finished(0.5 + 0.1 + 0.5 + 0.1 + 0.5)
    assert leaf.node is not None
    assert text_of(episode.tree.tokens(leaf.node)) == "cd>done."
    (trajectory,) = episode.tree.trajectories()
    assert text_of(trajectory.token_ids) == "ab>hi.ok>new.cd>ho.ok>new.cd>done."
    assert trajectory.withdrawn == ((0, 13), (13, 26))
    sample = sample_of(trajectory)
    assert sample is not None
    found = [
        (text_of(c.sample.token_ids), text_of(c.sample.token_ids[c.sample.mask]))
        for c in contexts(sample)
    ]
    assert found == [
        ("cd>done.", "done."),
        ("ab>hi.ok>new.", "hi.new."),
        ("cd>ho.ok>new.", "ho.new."),
    ]
    assert episode.added_tokens == len(trajectory.token_ids) - len("ab>")


async def test_room_is_that_of_the_context_which_stands() -> None:
    seen: list[str] = []
    _, leaf = await play("hi", "new", "hi", "done", seen=seen, context_tokens=14)
    assert isinstance(leaf.outcome, Finished)
    _, leaf = await play("hi", "hi", "new", "done", seen=seen, context_tokens=14)
    assert leaf.outcome == Truncated("tokens", 1.0)


def test_a_prompt_withdraws_a_whole_context_or_nothing() -> None:
    tree = _tree([("abc", False), ("ab", True)])
    end = len(tree.nodes) - 1
    stands = len(tree.context(end))
    assert stands < len(tree.path(end))
    for count in (1, stands - 1, stands + 1):
        with pytest.raises(ValueError, match="withdraws all of the one before"):
            tree.add(_prompt(end, withdraws=count))
    assert len(tree.context(tree.add(_prompt(end, withdraws=stands)))) == 1


def test_two_that_begin_at_one_place_share_the_beginning_only_if_both_do() -> None:
    tree = _tree([("abc", False)])
    end = len(tree.nodes) - 1
    first = tree.share(_prompt(end, withdraws=len(tree.context(end))))
    assert tree.share(_prompt(end, withdraws=len(tree.context(end)))) == first
    assert tree.share(_prompt(end, withdraws=0)) != first


def test_a_beginning_survives_the_store_and_is_in_the_fingerprint() -> None:
    messages = (Message("user", "cd"),)
    plain, anew = Observation(messages), Observation(messages, anew=True)
    assert unpack(pack((plain, anew))) == (plain, anew)
    assert fingerprint(plain) != fingerprint(anew)
    node = _prompt(3, withdraws=4)
    assert unpack(pack((node,))) == (node,)


TURNS = st.lists(
    st.tuples(st.text("abcdef", min_size=1, max_size=3), st.booleans()), min_size=1, max_size=6
)
"""What is said in each turn, and whether a conversation begins anew before it."""


@given(TURNS)
def test_every_token_trains_once_behind_what_it_saw(turns: Sequence[tuple[str, bool]]) -> None:
    tree = _tree(turns)
    sample = _sample(tree)
    found = contexts(sample)
    trained = np.concatenate([c.places[c.sample.mask] for c in found])
    assert sorted(trained.tolist()) == np.flatnonzero(sample.mask).tolist()
    at = 0
    for number, node in enumerate(tree.nodes):
        if node.source == "sampled":
            (own,) = [c for c in found if at in c.places[c.sample.mask]]
            before = own.sample.token_ids[: own.places.tolist().index(at)]
            assert node.parent == number - 1
            assert tuple(before.tolist()) == tree.tokens(number - 1)
        at += len(node.token_ids)


@pytest.mark.parametrize("layout", ["padded", "packed", "tree"])
def test_a_step_on_it_is_one_on_its_conversations(layout: str) -> None:
    turns = [("ab", False), ("cd", False), ("ef", True)]
    whole, apart = model_of(), model_of()
    Trainer(whole, _ones(layout), seed=0).step([_tree(turns)])
    two = Tree(Task(prompt="q", id="t"))
    for sample, part in enumerate((turns[:2], [("ef", False)])):
        _grow(two, part, sample=sample, begin=7 if sample else 2)
    Trainer(apart, _ones(layout), seed=0).step([two])
    pairs = [*zip(whole.parameters(), apart.parameters(), model_of().parameters(), strict=True)]
    assert all(torch.allclose(one, other, atol=1e-6) for one, other, _ in pairs)
    assert any(not torch.equal(one, first) for one, _, first in pairs)


def _ones(layout: str) -> LearnSection:
    return LearnSection.model_validate(
        {"layout": layout, "advantage": {"name": "custom", "function": "tests.test_patch:ones"}}
    )


def _tree(turns: Sequence[tuple[str, bool]]) -> Tree:
    tree = Tree(Task(prompt="q", id="t"))
    _grow(tree, turns, sample=0, begin=2)
    return tree


def _grow(tree: Tree, turns: Sequence[tuple[str, bool]], *, sample: int, begin: int) -> None:
    """Add a trajectory whose first prompt is `begin`, and whose later ones are 7."""
    at = tree.add(Node(parent=None, source="prompt", token_ids=(begin,), turn=0))
    for turn, (said, anew) in enumerate(turns):
        if anew:
            at = tree.add(_prompt(at, withdraws=len(tree.context(at)), turn=turn))
        tokens = tuple(ord(letter) - ord("a") + 3 for letter in said)
        at = tree.add(
            Node(
                parent=at,
                source="sampled",
                token_ids=tokens,
                turn=turn,
                logprobs=(-1.0,) * len(said),
                versions=(0,) * len(said),
            )
        )
        at = tree.add(Node(parent=at, source="tool", token_ids=(9,), turn=turn + 1))
    tree.end(Leaf(node=at, outcome=Finished(1.0), sample=sample))


def _prompt(parent: int, *, withdraws: int, turn: int = 0) -> Node:
    return Node(parent=parent, source="prompt", token_ids=(7,), turn=turn, withdraws=withdraws)


def _sample(tree: Tree) -> Sample:
    found = sample_of(tree.trajectories()[0])
    assert found is not None
    return found
