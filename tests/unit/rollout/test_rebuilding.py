"""Worlds and requests that are lost with what held them: made again, and nobody can tell.

Mutants seen caught: rebuilds without end; one step replayed too few, or with another seed; no
history kept; another answer taken for the same; what breaks in a replay taken for the end; the lost
world left open; every failure of an environment taken for a loss; turns counted wrong, replayed and
lost; a world put into the outer wrapper.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.engine.scripted import ScriptedEngine
from agentrl.env import Action, BaseEnv, Info, Observation, Step, say
from agentrl.errors import EngineError, EngineLost, EnvError, SandboxError, WorldLost
from agentrl.message import Message
from agentrl.policy import Completion, GenerateRequest, Sampling
from agentrl.rollout.env_wrapper import EnvWrapper, inmost, swap_worlds
from agentrl.rollout.episode import EpisodeLimits
from agentrl.rollout.runner import RolloutRunner
from agentrl.task import Split, Task
from agentrl.trajectory import Failed, Finished, Tree
from benchmarks.letters import END, LetterChat, ids

TASK = Task(prompt="ab", split="train", id="t")
TURNS = 6


@dataclass
class Lives:
    """How many answers each world gives before it is lost, in the order they are made."""

    left: Sequence[int] = ()
    made: int = 0
    closed: int = 0
    resets: list[int] = field(default_factory=list[int])

    def next(self) -> int:
        self.made += 1
        return self.left[self.made - 1] if self.made <= len(self.left) else 10**6


class Mortal(BaseEnv):
    """Answers with a letter that depends on all it has heard; ends after `TURNS` answers."""

    def __init__(self, lives: Lives, *, breaks: type[Exception] = WorldLost) -> None:
        self.lives = lives
        self.left = lives.next()
        self.breaks = breaks
        self.state = self.turn = 0

    def tasks(self, split: Split, *, seed: int = 0) -> Iterable[Task]:
        return [TASK]

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        assert seed is not None
        self.lives.resets.append(seed)
        self._live()
        self.state, self.turn = seed % 97, 0
        return Observation((Message("user", "ab"),), ()), {}

    async def step(self, action: Action) -> Step:
        self._live()
        self.turn += 1
        self.state = (self.state * 31 + sum(map(ord, action.text)) + self.turn) % 9973
        seen = Observation((Message("tool", chr(97 + self.state % 26)),))
        return seen, float(self.state % 5), self.turn == TURNS, False, {}

    async def close(self) -> None:
        self.lives.closed += 1

    def _live(self) -> None:
        if self.left == 0:
            raise self.breaks("the machine is gone")
        self.left -= 1


class Fickle(Mortal):
    """Says something else in every world."""

    async def step(self, action: Action) -> Step:
        self.state += self.lives.made
        return await super().step(action)


def reads_all(request: GenerateRequest) -> Sequence[int]:
    """Say something that depends on every token of the prompt."""
    return (*ids(chr(97 + sum(n * t for n, t in enumerate(request.prompt, 1)) % 26)), END)


class Losing(ScriptedEngine):
    """Loses the requests whose numbers are given, half-way."""

    def __init__(self, *lost: int, error: type[EngineError] = EngineLost) -> None:
        super().__init__(reads_all)
        self.lost = lost
        self.error = error
        self.asked = 0

    async def generate(self, request: GenerateRequest) -> Completion:
        self.asked += 1
        if self.asked not in self.lost:
            return await super().generate(request)
        await super().generate(replace(request, max_new_tokens=1))
        raise self.error("the engine is gone")


async def played(
    lives: Lives,
    *,
    rebuilds: int = 3,
    retries: int = 0,
    env: Any = Mortal,
    engine: ScriptedEngine | None = None,
) -> tuple[Tree, RolloutRunner]:
    rollouts = RolloutRunner(
        make_env=lambda: env(lives),
        engine=engine or ScriptedEngine(reads_all),
        chat=LetterChat(),
        limits=EpisodeLimits(max_turns=TURNS + 2),
        retries=retries,
        rebuilds=rebuilds,
    )
    (tree,) = await rollouts.collect([TASK], group_size=1, seed=5, sampling=Sampling())
    return tree, rollouts


def told(tree: Tree) -> list[Any]:
    """Return all there is of a tree but times."""
    (leaf,) = tree.leaves
    nodes = [(n.source, n.token_ids, n.versions, n.parent, n.turn) for n in tree.nodes]
    return [nodes, leaf.node, leaf.outcome, leaf.turn_rewards]


@settings(max_examples=60, deadline=None)
@given(first=st.integers(1, TURNS), others=st.lists(st.integers(0, TURNS), max_size=2))
async def test_a_trajectory_whose_worlds_are_lost_is_the_one_whose_world_is_not(
    first: int, others: list[int]
) -> None:
    """A world that lives for n answers answers the reset and n - 1 steps."""
    unharmed, _ = await played(Lives())
    lives = Lives([first, *others])
    tree, rollouts = await played(lives)
    assert told(tree) == told(unharmed)
    assert lives.made > 1
    assert lives.closed == lives.made, "the lost ones, too"
    assert rollouts.rebuilt.worlds == 1 + sum(
        life >= done for life, done in zip(others, standing(first, others), strict=True)
    )
    assert rollouts.rebuilt.lost_worlds == 0
    assert {*lives.resets} == {lives.resets[0]}, "every world began with the same seed"


def standing(first: int, others: Sequence[int]) -> list[int]:
    """Return how many answers each further world has to repeat: its reset and the turns before."""
    done, found = first, list[int]()
    for life in others:
        found.append(done)
        done = max(done, life)
    return found


def assert_lost(outcome: object, kind: str = "env", error: str = "the machine is gone") -> None:
    """Assert that a loss is told, with the line it comes from."""
    assert isinstance(outcome, Failed)
    assert outcome.kind == kind
    assert outcome.error.startswith(f"{error}; at tests/unit/rollout/test_rebuilding.py:")


async def test_what_is_lost_and_replayed_is_counted() -> None:
    tree, rollouts = await played(Lives([3, 2, 5]))
    assert isinstance(tree.leaves[0].outcome, Finished)
    # Two turns were complete; a world died replaying them, the next one after two more.
    assert rollouts.rebuilt.figures() == {
        "worlds/rebuilt": 2,
        "worlds/replayed_turns": 2 + 4,
        "worlds/lost": 0,
        "worlds/lost_turns": 0,
    }


async def test_after_so_many_it_fails_with_what_was_lost_counted() -> None:
    tree, rollouts = await played(Lives([3, 2, 2]), rebuilds=2)
    assert_lost(tree.leaves[0].outcome)
    figures = rollouts.rebuilt
    assert (figures.worlds, figures.lost_worlds, figures.lost_turns) == (0, 1, 2)
    # Played again from its beginning it is the same as ever.
    lives = Lives([3, 2, 2])
    again, _ = await played(lives, rebuilds=2, retries=1)
    assert isinstance(again.leaves[0].outcome, Finished)
    assert again.leaves[0].turn_rewards == (await played(Lives()))[0].leaves[0].turn_rewards


async def test_without_rebuilds_it_fails_at_once() -> None:
    lives = Lives([3])
    tree, _ = await played(lives, rebuilds=0)
    assert_lost(tree.leaves[0].outcome)
    assert lives.made == 1


async def test_a_world_that_says_something_else_is_not_the_same() -> None:
    tree, rollouts = await played(Lives([3]), env=Fickle)
    outcome = tree.leaves[0].outcome
    assert isinstance(outcome, Failed)
    assert outcome.kind == "env"
    assert "its replay gave a different environment" in outcome.error
    assert (rollouts.rebuilt.lost_worlds, rollouts.rebuilt.lost_turns) == (1, 2)


async def test_what_breaks_while_it_is_made_again_costs_a_try_and_not_the_world() -> None:
    class Breaks(Mortal):
        def __init__(self, lives: Lives) -> None:
            super().__init__(lives)
            self.breaks = SandboxError if lives.made == 2 else WorldLost

    tree, rollouts = await played(Lives([3, 2]), env=Breaks)
    assert isinstance(tree.leaves[0].outcome, Finished)
    assert rollouts.rebuilt.worlds == 1


async def test_other_failures_of_an_environment_are_its_own() -> None:
    def broken(lives: Lives) -> Mortal:
        return Mortal(lives, breaks=EnvError)

    lives = Lives([3])
    tree, _ = await played(lives, env=broken)
    assert isinstance(tree.leaves[0].outcome, Failed)
    assert lives.made == 1


@settings(max_examples=30, deadline=None)
@given(lost=st.sets(st.integers(1, TURNS + 3), max_size=3))
async def test_a_request_that_is_lost_is_asked_for_again_and_no_turn_with_it(
    lost: set[int],
) -> None:
    unharmed, _ = await played(Lives())
    engine, lives = Losing(*lost), Lives()
    tree, _ = await played(lives, retries=3, engine=engine)
    assert told(tree) == told(unharmed)
    assert lives.made == 1, "the trajectory was not begun again"
    assert engine.asked == TURNS + len([n for n in lost if n <= engine.asked])


async def test_a_request_that_is_lost_too_often_fails_the_trajectory_which_begins_again() -> None:
    lives, engine = Lives(), Losing(2, 3)
    tree, _ = await played(lives, retries=1, engine=engine)
    assert isinstance(tree.leaves[0].outcome, Finished)
    assert lives.made == 2
    tree, _ = await played(Lives(), retries=0, engine=Losing(2))
    assert_lost(tree.leaves[0].outcome, "engine", "the engine is gone")
    # What an engine refuses is not lost.
    engine = Losing(2, error=EngineError)
    lives = Lives()
    await played(lives, retries=1, engine=engine)
    assert lives.made == 2


async def test_a_world_is_put_where_every_wrapper_finds_it() -> None:
    first, second = Mortal(Lives()), Mortal(Lives())
    outer = EnvWrapper(EnvWrapper(first))
    assert swap_worlds(outer, EnvWrapper(second)) is first
    assert inmost(outer).inner is second
    await outer.reset(seed=1)
    await outer.step(say("a"))
    assert (first.turn, second.turn) == (0, 1)
    with pytest.raises(TypeError, match="a Mortal wraps nothing"):
        inmost(first)
