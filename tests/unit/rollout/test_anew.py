"""Conversations begun anew, left and taken up again: each token trains behind what it saw.

Mutants seen caught: the context kept; a run that begins after the first node, or ends early; a
prompt that withdraws less; nodes withdrawn twice in a context; a beginning lost in the store or in
the fingerprint; two beginnings of one place taken for one; tokens left behind not counted; another
node resumed; a token trained in two contexts; the noise of a resumed context begun anew.
"""

from collections.abc import Sequence
from typing import cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentrl.config.learn import LearnSection
from agentrl.engine.scripted import ScriptedEngine
from agentrl.env import Action, Observation, Step, TurnRequest, TurnUsage
from agentrl.events.history import fingerprint
from agentrl.learn.contexts import contexts
from agentrl.learn.sample import TrainingSample, sample_of
from agentrl.learn.trainer import PolicyTrainer
from agentrl.message import Message
from agentrl.rollout.episode import EpisodeLimits, EpisodePosition, EpisodeRunner
from agentrl.store.codec import pack, unpack
from agentrl.task import Task
from agentrl.trajectory import Failed, Finished, Leaf, Node, Tree, Truncated
from benchmarks.letters import END, LetterChat
from tests.support.learning import model_of
from tests.support.said_turns import saying, text_of
from tests.unit.rollout.test_rollout import TASK, Echo


class Forgets(Echo):
    """Begins anew after each turn that says `new`."""

    async def step(self, action: Action) -> Step:
        if action.text != "new":
            return await super().step(action)
        return Observation((Message("user", "cd"),), tools=(), anew=True), 0.1, False, False, {}


async def play(
    *turns: str, seen: list[str], context_tokens: int = 100
) -> tuple[EpisodeRunner, Leaf]:
    episode = EpisodeRunner(
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
    # As rewards are summed, which differs in the last bit from Python 3.12 on.
    assert leaf.outcome == Finished(1.7)
    assert leaf.node is not None
    assert text_of(episode.tree.tokens(leaf.node)) == "cd>done."
    (trajectory,) = episode.tree.trajectories()
    assert text_of(trajectory.token_ids) == "ab>hi.ok>new.cd>ho.ok>new.cd>done."
    assert trajectory.jumps == ((13, -1), (26, -1))
    sample = sample_of(episode.tree, leaf)
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
        with pytest.raises(ValueError, match="must withdraw all of the previous one"):
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
    PolicyTrainer(whole, _ones(layout), seed=0).step([_tree(turns)])
    two = Tree(Task(prompt="q", id="t"))
    for sample, part in enumerate((turns[:2], [("ef", False)])):
        _grow(two, part, sample=sample, begin=7 if sample else 2)
    PolicyTrainer(apart, _ones(layout), seed=0).step([two])
    pairs = [*zip(whole.parameters(), apart.parameters(), model_of().parameters(), strict=True)]
    assert all(torch.allclose(one, other, atol=1e-6) for one, other, _ in pairs)
    assert any(not torch.equal(one, first) for one, _, first in pairs)


class Talks(Echo):
    """Holds several conversations by turns; `plan` says after which turn each one goes on.

    -1 begins one. Two that go on after the same turn are branches of it.
    """

    def __init__(self, plan: Sequence[int], turn: int = 0) -> None:
        super().__init__()
        self.plan = plan
        self.turn = turn

    async def step(self, action: Action) -> Step:
        if self.turn == len(self.plan):
            return Observation(()), 1.0, True, False, {}
        after = self.plan[self.turn]
        self.turn += 1
        if after < 0:
            shown = Observation((Message("user", "cd"),), tools=(), anew=True)
        else:
            is_last = after == self.turn - 1
            shown = Observation((Message("tool", "ok"),), after=None if is_last else after)
        return shown, 0.0, False, False, {}


def talking(plan: Sequence[int], tree: Tree, begin: EpisodePosition | None = None) -> EpisodeRunner:
    return EpisodeRunner(
        env=Talks(plan, 0 if begin is None else begin.turn),
        engine=ScriptedEngine(lambda request: (*map(ord, str(request.id[-3])), END)),
        chat=LetterChat(),
        tree=tree,
        sample=0,
        seed=1,
        limits=EpisodeLimits(max_turns=9, context_tokens=200),
        begin=begin,
    )


@st.composite
def plans(draw: st.DrawFn) -> list[int]:
    """Return for each turn but the first the one it goes on after."""
    return [draw(st.integers(-1, turn)) for turn in range(draw(st.integers(0, 6)))]


@given(plans(), st.data())
async def test_a_conversation_goes_on_in_its_own_context(
    plan: list[int], data: st.DataObject
) -> None:
    tree = Tree(TASK)
    episode = talking(plan, tree)
    leaf = await episode.run()
    assert leaf.outcome == Finished(1.0)
    asked = ["ab>"]
    for turn, after in enumerate(plan):
        asked.append("cd>" if after < 0 else f"{asked[after]}{after}.ok>")
        assert len(asked) == turn + 2
    engine = cast("ScriptedEngine", episode.engine)
    assert [text_of(request.prompt) for request in engine.requests] == asked
    switches = [turn for turn, after in enumerate(plan) if after != turn]
    assert len({request.seed for request in engine.requests}) == 1 + len(switches)
    added = sum(len(node.token_ids) for node in tree.nodes) - len("ab>")
    assert episode.added_tokens == added
    tree.end(leaf)
    assert tree.nodes == unpack(pack(tree.nodes))
    sample = _sample(tree)
    found = contexts(sample)
    ends = [turn for turn in range(len(asked)) if turn not in plan]
    assert sorted(text_of(c.sample.token_ids.tolist()) for c in found) == sorted(
        f"{asked[turn]}{turn}." for turn in ends
    )
    trained = np.concatenate([c.places[c.sample.mask] for c in found])
    assert sorted(trained.tolist()) == np.flatnonzero(sample.mask).tolist()
    # Taken up in the middle, as after a kill, it goes on as if nothing had been.
    turn = data.draw(st.integers(0, len(plan)))
    half = Tree(TASK)
    own = [at for at, node in enumerate(tree.nodes) if node.turn == turn]
    (said,) = [at for at in own if tree.node(at).source == "sampled"]
    for node in tree.nodes[:said]:
        half.add(node)
    place = EpisodePosition(node=said - 1, turn=turn, context_tokens=0)
    resumed = talking(plan, half, place)
    end = await resumed.run()
    assert isinstance(end.outcome, Finished)
    assert [n.token_ids for n in half.nodes] == [n.token_ids for n in tree.nodes]
    assert [n.resumes for n in half.nodes] == [n.resumes for n in tree.nodes]
    again = cast("ScriptedEngine", resumed.engine).requests
    assert [(r.prompt, r.seed) for r in again] == [
        (r.prompt, r.seed) for r in engine.requests[turn:]
    ]


def test_a_node_resumes_what_is_on_its_path() -> None:
    tree = _tree([("abc", False)])
    end = len(tree.nodes) - 1
    with pytest.raises(ValueError, match="of the 3 nodes before it"):
        tree.add(Node(parent=end, source="tool", token_ids=(1,), turn=1, resumes=4))
    with pytest.raises(ValueError, match="give only one of them"):
        Node(parent=end, source="prompt", token_ids=(1,), turn=1, resumes=1, withdraws=1)
    with pytest.raises(ValueError, match="turn 7 is not on the path"):
        tree.turn_end(end, 7)


async def test_an_observation_that_goes_on_after_nothing_fails_alone() -> None:
    class Lost(Echo):
        async def step(self, action: Action) -> Step:
            return Observation((Message("tool", "ok"),), after=5), 0.0, False, False, {}

    episode = EpisodeRunner(
        env=Lost(),
        engine=ScriptedEngine(saying("hi")),
        chat=LetterChat(),
        tree=Tree(TASK),
        sample=0,
        seed=1,
    )
    leaf = await episode.run()
    assert isinstance(leaf.outcome, Failed)
    assert "goes on after turn 5" in leaf.outcome.error


def test_what_goes_on_elsewhere_survives_the_store_and_is_in_the_fingerprint() -> None:
    messages = (Message("user", "cd"),)
    shown = [
        Observation(messages),
        Observation(messages, after=0),
        Observation(messages, after=1),
        Observation(messages, request=TurnRequest()),
        Observation(messages, after=0, request=TurnRequest(max_tokens=3, stop=("x",))),
    ]
    assert [unpack(pack((one,)))[0] for one in shown] == shown
    assert len({fingerprint(one) for one in shown}) == len(shown)
    action = Action("x", malformed=("y",), malformed_text="z", usage=TurnUsage(3, 4, 1, "length"))
    again = unpack(pack(action))
    assert (again, again.usage, again.malformed_text) == (action, action.usage, "z")


def _ones(layout: str) -> LearnSection:
    return LearnSection.model_validate(
        {
            "layout": layout,
            "advantage": {"name": "custom", "function": "tests.unit.chat.test_patch:ones"},
        }
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


def _sample(tree: Tree) -> TrainingSample:
    found = sample_of(tree, tree.leaves[0])
    assert found is not None
    return found
