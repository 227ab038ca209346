"""What tests of drafts share: a world of letters, and a stage that plays it version by version."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from agentrl.env import Action, BaseEnv, ForkStrategy, Info, Observation, Step
from agentrl.message import Message, ToolCall
from agentrl.policy import GenerateRequest, Sampling
from agentrl.rollout.drafts.cache import DraftCache
from agentrl.rollout.drafts.engine import DraftReuseSettings, Reuse
from agentrl.rollout.drafts.runner import DraftingRunner
from agentrl.rollout.drafts.verify import AcceptanceRule
from agentrl.rollout.episode import EpisodeLimits
from agentrl.rollout.runner import RolloutRunner
from agentrl.rollout.scheduler.policy import SchedulerPolicy
from agentrl.rollout.scheduler.segments import SegmentBudget
from agentrl.task import Split, Task
from agentrl.trajectory import Trajectory, Tree
from benchmarks.letters import END, LetterChat, ids, said
from tests.support.scripted_scorer import ScriptedScorer

TASK = Task(prompt="ab", answer="x", id="task")
SIZE = 128
SURE, UNSURE, NEVER = math.log(0.9), math.log(0.3), -math.inf


class CallChat(LetterChat):
    """A turn that has a `[` is a call, malformed until it has a `]`."""

    def parse(self, token_ids: Sequence[int]) -> Action:
        text = said(token_ids)
        if "[" not in text:
            return Action(text)
        before, _, call = text.partition("[")
        if "]" in call:
            return Action(before, (ToolCall("call_0", call.strip("]"), {}),))
        return Action(before, malformed=("not closed",))


class World(BaseEnv):
    """Answers each turn with what `answer` says; `done` ends the episode."""

    fork_strategy: ForkStrategy = "copy"

    def __init__(self, answer: Callable[[int], str], log: list[str]) -> None:
        self._answer = answer
        self._log = log

    def tasks(self, split: Split, *, seed: int = 0) -> Iterable[Task]:
        return [TASK]

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        self._log.append(f"reset {seed}")
        self._turns = 0
        return Observation(TASK.messages, tools=()), {}

    async def step(self, action: Action) -> Step:
        self._log.append(action.text)
        self._turns += 1
        if action.text.startswith("done"):
            return Observation(()), 1.0, True, False, {}
        return Observation((Message("tool", self._answer(self._turns)),)), 0.5, False, False, {}


class Stage:
    """Plays one trajectory of one task per version of the weights, with drafts."""

    def __init__(
        self,
        *turns: str,
        rule: AcceptanceRule | None = None,
        reuse: Reuse = "verify",
        residual: bool = False,
        limits: EpisodeLimits | None = None,
        max_age: int | None = None,
        segment: SegmentBudget | None = None,
    ) -> None:
        self.turns = turns
        self.now: dict[tuple[int, ...], float] = {}
        """Log-probs that differ from `SURE`, by context and token."""
        self.answer: Callable[[int], str] = lambda turn: "ok"
        self.log: list[str] = []
        self.segment = segment
        self.engine = ScriptedScorer(self.reply, self.distribution, logprob=SURE)
        self.rollouts = RolloutRunner(
            make_env=lambda: World(lambda turn: self.answer(turn), self.log),
            engine=self.engine,
            chat=CallChat(),
            limits=limits or EpisodeLimits(),
        )
        self.play = self.player(DraftCache(1000), rule, reuse, residual, max_age)

    def player(
        self,
        cache: DraftCache,
        rule: AcceptanceRule | None,
        reuse: Reuse,
        residual: bool,
        max_age: int | None = None,
    ) -> DraftingRunner:
        return DraftingRunner(
            rollouts=self.rollouts,
            sampling=Sampling(),
            cache=cache,
            seed=5,
            reusing=DraftReuseSettings(
                rule=rule or AcceptanceRule(), reuse=reuse, residual=residual, alternatives=4
            ),
            max_age=max_age,
        )

    def reply(self, request: GenerateRequest) -> Sequence[int]:
        """Say what is left of the turn that the context is in."""
        turn = sum(token == ord(">") for token in request.prompt) - 1
        begun = request.prompt[::-1].index(ord(">"))
        return (*ids(self.turns[turn]), END)[begun:]

    def distribution(self, context: tuple[int, ...]) -> Sequence[float]:
        """Be sure of what `turns` say, and of what `now` changes."""
        begun = context[::-1].index(ord(">"))
        turn = sum(token == ord(">") for token in context) - 1
        row = [-20.0] * SIZE
        script = (*ids(self.turns[turn]), END) if turn < len(self.turns) else (END,)
        row[script[begun] if begun < len(script) else END] = SURE
        for (*at, token), value in self.now.items():
            if tuple(at) == context:
                row[token] = value
        return row

    async def go(self, version: int) -> Trajectory:
        """Play once under a version, and return what was played."""
        (trajectory,) = (await self.tree(version)).trajectories()
        return trajectory

    async def tree(self, version: int) -> Tree:
        """Play once under a version, and return the tree."""
        if version:
            await self.engine.load(None, version)
        policy = SchedulerPolicy(
            mode="sync", groups_per_step=1, group_size=1, concurrency=1, segment=self.segment
        )
        left = [TASK]

        def take(count: int) -> list[Task]:
            taken, left[:] = left[:count], left[count:]
            return taken

        gate = self.rollouts.scheduler(
            policy,
            take,
            sampling=Sampling(),
            seed=lambda number, task, sample: 100 + version,
            play=self.play,
            first_group=version,
            version=version,
        )
        async with gate:
            (tree,) = (await gate.next_batch()).trees
        return tree


def at(*parts: str) -> tuple[int, ...]:
    """Return the context after the prompt and these parts, `|` ending a turn."""
    return tuple(END if x == "|" else ord(x) for x in "".join(("ab>", *parts)))


def sampled(trajectory: Trajectory, values: Sequence[Any]) -> list[Any]:
    return [x for x, own in zip(values, trajectory.mask, strict=True) if own]
