"""Branching on the code environment, with real interpreters: forked siblings are worlds apart."""

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.engine.scripted import ScriptedEngine
from agentrl.env import Action, call, say
from agentrl.policy import GenerateRequest, Sampling
from agentrl.rollout.branching.aepo import StaticRootSplit
from agentrl.rollout.branching.arpo import ArpoRule
from agentrl.rollout.branching.balanced import EntropyBalancedTopology
from agentrl.rollout.branching.budget import BranchBudget
from agentrl.rollout.branching.entropy import EntropySignal
from agentrl.rollout.branching.fixed_topologies import TreeGrpoTopology
from agentrl.rollout.branching.topology import AnyTopology
from agentrl.rollout.episode import EpisodeLimits
from agentrl.runtime.scope import run_scope
from agentrl.runtime.seeds import derive
from agentrl.trajectory import Finished
from agentrl_envs.code import CodeEnv
from benchmarks.letters import END, LetterChat, ids, said
from benchmarks.tree_grower import GrownTree, TreeGrower

TURN = 1
TURNS = 4
CELL = """\
import os
log = globals().get("log", [])
log.append({mark})
open("{mark}", "w").close()
print((log, sorted(map(int, os.listdir()))))"""


@dataclass(frozen=True)
class MarkChat(LetterChat):
    """A turn is a number that becomes a cell, or `!`, the answer."""

    turn: int = TURN

    def parse(self, token_ids: Sequence[int]) -> Action:
        text = said(token_ids)
        return say(text) if text == "!" else call("python", code=CELL.format(mark=int(text)))


def marks(request: GenerateRequest) -> Sequence[int]:
    """Choose a mark by seed and turn; the rest of it when a probe has said the beginning."""
    begins = [i for i, token in enumerate(request.prompt) if token == TURN]
    done = len(request.prompt) - begins[-1] - 1
    if len(begins) > TURNS:
        return (*ids("!"), END)[done:]
    mark = 10_000 + derive(request.seed, len(begins)) % 90_000
    return (*ids(str(mark)), END)[done:]


def surprise(request: GenerateRequest, place: int, token: int) -> float:
    return -Random(derive(request.seed, len(request.prompt), place)).random() * 2


def turns_of(token_ids: tuple[int, ...]) -> list[tuple[str, str]]:
    """Return what was said and what was answered, turn by turn."""
    text = "".join(map(chr, token_ids))
    pairs = [part.partition(chr(END)) for part in text.split(chr(TURN))[1:]]
    return [(said, answer) for said, _, answer in pairs]


def check_apart(grown: GrownTree) -> None:
    """Every interpreter remembers the cells of its own path, and has the files of these alone."""
    for trajectory in grown.tree.trajectories():
        assert isinstance(trajectory.outcome, Finished), trajectory.outcome
        own: list[int] = []
        turns = turns_of(trajectory.token_ids)
        assert len(turns) == TURNS + 1
        for mark, answer in turns[:-1]:
            own.append(int(mark))
            assert ast.literal_eval(answer.strip()) == (own, sorted(own))


async def grow(topology: AnyTopology, seed: int) -> GrownTree:
    families = {"chain_sum": {"min_terms": 2, "max_terms": 2}}
    (task,) = islice(CodeEnv(families=families).tasks("train", seed=seed), 1)
    async with run_scope():
        return await TreeGrower(
            topology=topology,
            make_env=lambda: CodeEnv(families=families),
            engine=ScriptedEngine(marks, logprob=surprise),
            chat=MarkChat(),
            limits=EpisodeLimits(max_turns=8, context_tokens=4096),
        ).grow(task, seed=seed, sampling=Sampling())


@pytest.mark.namespaces
@pytest.mark.slow
@settings(max_examples=6)
@given(seed=st.integers(0, 2**32), roots=st.integers(1, 3), weight=st.floats(0, 2))
async def test_forked_siblings_diverge_without_interference(
    seed: int, roots: int, weight: float
) -> None:
    topology = EntropyBalancedTopology(
        budget=BranchBudget(leaves=6),
        signal=EntropySignal(vocabulary=1000, tokens=3),
        rule=ArpoRule(base=0.6, weight=weight),
        split=StaticRootSplit(roots=roots),
    )
    grown = await grow(topology, seed)
    assert len(grown.tree.leaves) == 6
    assert not [copied.error for copied in grown.copies if copied.error]
    assert {copied.strategy for copied in grown.copies} <= {"native"}
    check_apart(grown)


@pytest.mark.namespaces
async def test_places_held_for_later_stay_as_they_were() -> None:
    grown = await grow(TreeGrpoTopology(trees=1, rounds=2, width=3), 3)
    assert len(grown.tree.leaves) == 7
    assert any(start.origin.turn > 0 for start in grown.starts)
    check_apart(grown)
