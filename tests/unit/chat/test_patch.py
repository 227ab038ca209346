"""Patched turns: what stands in later contexts, what stays on record, and where it trains.

Whole trajectories get credit; contexts, one per patched turn and one for what stands, are read.

Mutants seen caught: withdrawn nodes kept in a context; runs a node too long; another turn's nodes
withdrawn; the patch put behind what it replaces; a thought left out; a withdrawal lost in the store
or in the sample; a draft of two contexts; contexts that hold what was withdrawn, or train what
another one trains; scores off the mask; the last value lost; credit of other places; rows not
split; a patch closed twice.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentrl.config.learn import LearnSection
from agentrl.engine.scripted import ScriptedEngine
from agentrl.env import Action, Observation, Patch, Step, say
from agentrl.errors import ConfigError
from agentrl.learn.contexts import contexts, rows_of, score_by_context
from agentrl.learn.layouts.padded import PaddedLayout
from agentrl.learn.logprob_scorer import LogprobScorer
from agentrl.learn.micro_batch import CreditedSample
from agentrl.learn.sample import TrainingGroup, TrainingSample, sample_of
from agentrl.learn.trainer import PolicyTrainer
from agentrl.message import Message
from agentrl.rollout.drafts.draft import DraftTrajectory
from agentrl.rollout.episode import EpisodeLimits, EpisodeRunner
from agentrl.store.codec import pack, unpack
from agentrl.task import Task
from agentrl.trajectory import Failed, Finished, Leaf, Node, Tree, Truncated
from benchmarks.letters import END, LetterChat, ids
from tests.support.learning import model_of
from tests.support.said_turns import saying, text_of
from tests.unit.rollout.test_rollout import TASK, ClosingChat, Echo


class WritingLetters(LetterChat):
    """Letters that can be written too."""

    def write(self, action: Action) -> tuple[int, ...]:
        return (*ids(action.text), END)


class Corrects(Echo):
    """Wants `right` in every turn, and puts it in the place of anything else."""

    def __init__(self, hint: str = "") -> None:
        super().__init__()
        self.hint = hint

    async def step(self, action: Action) -> Step:
        if action.text in ("right", "done"):
            return await super().step(action)
        patch = Patch(say("right"), self.hint)
        return Observation((Message("tool", "ok"),)), 0.1, False, False, {"patch": patch}


async def play(
    *turns: str, hint: str = "", chat: LetterChat | None = None, seen: list[str] | None = None
) -> tuple[Tree, Leaf]:
    tree = Tree(TASK)
    episode = EpisodeRunner(
        env=Corrects(hint),
        engine=ScriptedEngine(saying(*turns, seen=seen)),
        chat=chat or WritingLetters(),
        tree=tree,
        sample=0,
        seed=1,
        limits=EpisodeLimits(max_turns=4),
    )
    leaf = await episode.run()
    tree.end(leaf)
    return tree, leaf


async def test_later_turns_see_the_patch_and_not_what_was_said() -> None:
    seen: list[str] = []
    tree, leaf = await play("no", "right", "done", seen=seen)
    assert leaf.outcome == Finished(1.1)
    assert leaf.turn_rewards == (0.1, 0.5, 0.5)
    assert seen == ["ab>", "ab>right.ok>", "ab>right.ok>right.ok>"]
    assert leaf.node is not None
    assert text_of(tree.tokens(leaf.node)) == "ab>right.ok>right.ok>done."
    (trajectory,) = tree.trajectories()
    assert text_of(trajectory.token_ids) == "ab>no.right.ok>right.ok>done."
    assert trajectory.jumps == ((6, 2),)
    assert text_of(
        [t for t, m in zip(trajectory.token_ids, trajectory.mask, strict=True) if m]
    ) == ("no.right.done.")
    assert trajectory.turns[3:12] == (0,) * 9
    forced = [node for node in tree.nodes if node.source == "forced"]
    assert [(node.turn, node.withdraws, node.logprobs) for node in forced] == [(0, 1, ())]


async def test_a_thought_is_asked_for_with_a_hint_that_no_context_keeps() -> None:
    seen: list[str] = []
    tree, leaf = await play("no", "hm", "done", hint="say right", seen=seen)
    assert seen == ["ab>", "ab>no.say right>", "ab>hm\nright.ok>"]
    assert leaf.turn_rewards == (0.1, 0.5)
    (trajectory,) = tree.trajectories()
    assert text_of(trajectory.token_ids) == "ab>no.hm\nright.ok>done."
    assert trajectory.sources[6:14] == ("forced",) * 8


class WritingClosing(ClosingChat, WritingLetters):
    """Closes a turn that the policy has not ended, and can write one."""


async def test_a_patch_of_a_turn_that_was_cut_is_closed_once() -> None:
    tree = Tree(TASK)
    episode = EpisodeRunner(
        env=Corrects(),
        engine=ScriptedEngine(saying("nonsense", "right")),
        chat=WritingClosing(),
        tree=tree,
        sample=0,
        seed=1,
        limits=EpisodeLimits(max_turns=1, max_turn_tokens=3),
    )
    leaf = await episode.run()
    assert leaf.node is not None
    assert text_of(tree.tokens(leaf.node)) == "ab>right.ok>"


async def test_a_patch_needs_a_chat_that_can_write() -> None:
    with pytest.raises(ConfigError, match="cannot render one"):
        await play("no", chat=LetterChat())


async def test_a_patched_turn_is_a_context_of_its_own() -> None:
    tree, _ = await play("no", "right", "nay", "done")
    sample = sample_of(tree, tree.leaves[0])
    assert sample is not None
    found = [
        (text_of(c.sample.token_ids), text_of(c.sample.token_ids[c.sample.mask]))
        for c in contexts(sample)
    ]
    assert found == [
        ("ab>right.ok>right.ok>right.ok>done.", "right.done."),
        ("ab>no.", "no."),
        ("ab>right.ok>right.ok>nay.", "nay."),
    ]


def _node(parent: int | None, source: str, turn: int, **more: int) -> Node:
    own = {"logprobs": (-1.0,), "versions": (0,)} if source == "sampled" else {}
    return Node(parent=parent, source=source, token_ids=(5,), turn=turn, **own, **more)  # pyright: ignore[reportArgumentType]


def test_only_a_sampled_turn_can_be_withdrawn_and_only_by_a_forced_node() -> None:
    with pytest.raises(ValueError, match="only a forced node"):
        _node(None, "tool", 0, withdraws=1)
    tree = Tree(TASK)
    prompt = tree.add(_node(None, "prompt", 0))
    said = tree.add(_node(prompt, "sampled", 0))
    for parent, turn, count in ((said, 0, 2), (said, 1, 1), (prompt, 0, 1), (said, 0, 3)):
        with pytest.raises(ValueError, match="only nodes sampled in its own turn"):
            tree.add(_node(parent, "forced", turn, withdraws=count))
    more = tree.add(_node(said, "sampled", 0))
    assert tree.tokens(tree.add(_node(more, "forced", 0, withdraws=2))) == (5, 5)


def test_a_withdrawal_survives_the_store_and_makes_no_draft() -> None:
    patch = _node(1, "forced", 0, withdraws=1)
    plain = _node(1, "forced", 0)
    assert unpack(pack((patch, plain))) == (patch, plain)
    path = (_node(None, "prompt", 0), _node(0, "sampled", 0))
    assert DraftTrajectory.from_path((*path, plain)) is not None
    assert DraftTrajectory.from_path((*path, patch)) is None


TOKENS = st.lists(st.integers(2, 11), min_size=1, max_size=3).map(tuple)
TURNS = st.lists(st.tuples(TOKENS, st.none() | TOKENS, TOKENS), min_size=1, max_size=4)
"""What is said in each turn, what is put in its place if anything is, and what is answered."""

Turns = Sequence[tuple[tuple[int, ...], tuple[int, ...] | None, tuple[int, ...]]]


def patched(turns: Turns) -> TrainingSample:
    tree = Tree(Task(prompt="q", id="t"))
    at = tree.add(Node(parent=None, source="prompt", token_ids=(2, 3), turn=0))
    for turn, (said, patch, answer) in enumerate(turns):
        logprobs, versions = (-1.0 - turn,) * len(said), tuple(t % 2 for t in said)
        at = tree.add(
            Node(
                parent=at,
                source="sampled",
                token_ids=said,
                turn=turn,
                logprobs=logprobs,
                versions=versions,
            )
        )
        if patch is not None:
            at = tree.add(Node(parent=at, source="forced", token_ids=patch, turn=turn, withdraws=1))
        at = tree.add(Node(parent=at, source="tool", token_ids=answer, turn=turn + 1))
    end = Leaf(node=at, outcome=Truncated("turns", 1.0), sample=0)
    found = sample_of(tree, end)
    assert found is not None
    return found


@given(TURNS)
def test_every_token_trains_once_in_a_context_that_holds_what_it_saw(turns: Turns) -> None:
    sample = patched(turns)
    found = contexts(sample)
    trained = np.concatenate([c.places[c.sample.mask] for c in found])
    assert sorted(trained.tolist()) == np.flatnonzero(sample.mask).tolist()
    gone = np.zeros(len(sample.token_ids), dtype=bool)
    withdrawn = [(before + 1, start) for start, before in sample.jumps]
    for start, stop in withdrawn:
        gone[start:stop] = True
    for one in found:
        assert not one.sample.jumps
        for name in ("token_ids", "behaviour", "nodes", "turns", "versions", "sampled"):
            assert (getattr(one.sample, name) == getattr(sample, name)[one.places]).all(), name
        assert (np.diff(one.places) > 0).all()
        for place in one.places[one.sample.mask].tolist():
            own = [r for r in withdrawn if r[0] <= place < r[1]]
            start = own[0][0] if own else place
            before = [*np.flatnonzero(~gone[:start]).tolist(), *range(start, place + 1)]
            assert one.places[: len(before)].tolist() == before


@given(TURNS)
def test_what_contexts_are_scored_with_comes_back_to_its_tokens(turns: Turns) -> None:
    sample = patched(turns)

    def score(samples: Sequence[TrainingSample]) -> list[TrainingSample]:
        return [
            replace(s, proximal=np.where(s.mask, s.token_ids * 10.0, np.nan), final_value=7.0)
            for s in samples
        ]

    (found,) = score_by_context([sample], score)
    assert found.proximal is not None
    own = sample.mask
    assert (found.proximal[own] == sample.token_ids[own] * 10.0).all()
    assert found.entropies is None
    assert found.final_value == 7.0
    assert found.token_ids is sample.token_ids


def test_log_probs_of_a_trajectory_are_those_of_its_contexts() -> None:
    """What follows a patch is scored behind the patch, and the patched turn where it was said."""
    tree = _tree()
    sample = sample_of(tree, tree.leaves[0])
    assert sample is not None
    evidence = LogprobScorer(model_of(), PaddedLayout(64), 1.0, head_at_positions=True)
    whole = evidence.score_groups([TrainingGroup("t", (sample,))])[0].samples[0].proximal
    assert whole is not None
    for tokens, place in (((2, 3, 6), 2), ((2, 3, 8, 9, 7), 5)):
        with torch.no_grad():
            logits = evidence.model(torch.tensor([tokens])).logits[0, -2].double()
        alone = float(logits.log_softmax(-1)[tokens[-1]])
        assert whole[place] == pytest.approx(alone, abs=1e-4)


@pytest.mark.parametrize("layout", ["padded", "packed", "tree"])
def test_a_step_on_a_patched_trajectory_is_one_on_its_contexts(layout: str) -> None:
    """Both tokens train, and the same weights come of rows that were written down apart."""
    config = LearnSection.model_validate(
        {"layout": layout, "advantage": {"name": "grpo", "singleton": "raw"}}
    )
    patched_model, apart_model = model_of(), model_of()
    figures = PolicyTrainer(patched_model, config, seed=0).step([_tree()])
    assert figures["tokens/trained"] == 2
    assert figures["batch/trajectories"] == 1
    apart = Tree(Task(prompt="q", id="t"))
    for sample, tokens in enumerate(((2, 3, 6), (2, 3, 8, 9, 7))):
        prompt = apart.add(Node(parent=None, source="prompt", token_ids=tokens[:-1], turn=0))
        end = apart.add(_said(prompt, tokens[-1], 0))
        apart.end(Leaf(node=end, outcome=Finished(1.0), sample=sample))
    raw = LearnSection.model_validate(
        {"layout": layout, "advantage": {"name": "custom", "function": f"{__name__}:ones"}}
    )
    PolicyTrainer(apart_model, raw, seed=0).step([apart])
    pairs = zip(patched_model.parameters(), apart_model.parameters(), strict=True)
    assert all(torch.allclose(one, other, atol=1e-6) for one, other in pairs)
    assert any(
        not torch.equal(one, other)
        for one, other in zip(patched_model.parameters(), model_of().parameters(), strict=True)
    )


def ones(groups: Sequence[TrainingGroup]) -> list[np.ndarray]:
    """Give every token an advantage of 1."""
    return [np.ones(len(sample.token_ids)) for group in groups for sample in group.samples]


def _said(parent: int, token: int, turn: int) -> Node:
    return Node(
        parent=parent,
        source="sampled",
        token_ids=(token,),
        turn=turn,
        logprobs=(-1.0,),
        versions=(0,),
    )


def _tree() -> Tree:
    tree = Tree(Task(prompt="q", id="t"))
    prompt = tree.add(Node(parent=None, source="prompt", token_ids=(2, 3), turn=0))
    wrong = tree.add(_said(prompt, 6, 0))
    patch = tree.add(Node(parent=wrong, source="forced", token_ids=(8,), turn=0, withdraws=1))
    tool = tree.add(Node(parent=patch, source="tool", token_ids=(9,), turn=1))
    end = tree.add(_said(tool, 7, 1))
    tree.end(Leaf(node=end, outcome=Finished(1.0), sample=0))
    return tree


def test_rows_share_the_credit_of_their_tokens() -> None:
    tree = _tree()
    sample = sample_of(tree, tree.leaves[0])
    assert sample is not None
    rows = rows_of(CreditedSample(sample, np.arange(6.0)))
    assert [row.advantages[row.mask].tolist() for row in rows] == [[5.0], [2.0]]


def test_a_failed_trajectory_is_none_still() -> None:
    tree = _tree()
    leaf = replace(tree.leaves[0], outcome=Failed("env", "broke"))
    assert sample_of(tree, leaf) is None
