"""Steps 2 to 4 of the flow: one environment and the policy in turn, recorded on a tree.

This is the boundary where a failure becomes data: whatever an environment, a tool, a sandbox or the
engine raises ends here as a `Failed` leaf. Cancellation and configuration errors rise.
"""

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from agentrl.env import Action, Env, Observation, Step, ToolSchema
from agentrl.errors import ConfigError, EngineError, EnvError, RolloutError, blame
from agentrl.message import Image, Message
from agentrl.policy import Completion, GenerateRequest, PolicyEngine, Sampling
from agentrl.task import Task
from agentrl.trajectory import Failed, Finished, Leaf, Node, Outcome, Source, Tree, Truncated

CLOSE_S = 10.0
"""Deadline of an environment's close: it must not hold back the next trajectory."""


class TokenSegment(Protocol):
    """A run of token ids from one source."""

    @property
    def source(self) -> Source:
        """Who made the tokens."""
        ...

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The tokens."""
        ...

    @property
    def images(self) -> tuple[Image, ...]:
        """The images whose placeholders are among the tokens."""
        ...


class Chat(Protocol):
    """Messages to tokens and back, incrementally; `agentrl.chat` implements it."""

    @property
    def stop_token_ids(self) -> frozenset[int]:
        """What ends an assistant turn."""
        ...

    def opening(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema]
    ) -> Sequence[TokenSegment]:
        """Render the prompt of an episode."""
        ...

    def reply(
        self,
        messages: Sequence[Message],
        *,
        ended: bool,
        tools: Sequence[ToolSchema] | None = None,
    ) -> Sequence[TokenSegment]:
        """Render what follows a sampled turn, up to where the next one begins."""
        ...

    def parse(self, token_ids: Sequence[int]) -> Action:
        """Read a sampled turn."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeLimits:
    """When a trajectory is stopped, and how long anything in it may take."""

    max_turns: int = 8
    max_turn_tokens: int = 256
    context_tokens: int = 1024
    reset_s: float = 60.0
    step_s: float = 60.0
    turn_s: float = 600.0
    episode_s: float = 1800.0


@dataclass(slots=True)
class Episode:
    """One trajectory in the making. Owns its environment; `run` closes it."""

    env: Env
    engine: PolicyEngine
    chat: Chat
    tree: Tree
    sample: int
    seed: int
    """Of the environment and of the sampling noise."""
    sampling: Sampling = field(default_factory=Sampling)
    limits: EpisodeLimits = field(default_factory=EpisodeLimits)
    clock: Callable[[], float] = time.monotonic

    _at: int | None = None
    _context: list[int] = field(default_factory=list[int])
    _rewards: list[float] = field(default_factory=list[float])
    _components: dict[str, float] = field(default_factory=dict[str, float])
    _tool_calls: int = 0

    async def run(self) -> Leaf:
        """Play to the end and return the leaf, which is not yet recorded on the tree."""
        started = self.clock()
        try:
            try:
                outcome = await self._play(started)
            finally:
                await self._close()
        except RolloutError as error:
            outcome = Failed(error.kind, str(error))
        return Leaf(
            node=self._at,
            outcome=outcome,
            sample=self.sample,
            turn_rewards=tuple(self._rewards),
            components=self._components,
            seconds=self.clock() - started,
            tool_calls=self._tool_calls,
        )

    @property
    def _task(self) -> Task:
        return self.tree.task

    async def _play(self, started: float) -> Outcome:
        observation = await self._reset()
        for segment in self.chat.opening(observation.messages, observation.tools or ()):
            self._append(segment, turn=0)
        self._check_prompt()
        for turn in range(self.limits.max_turns):
            if len(self._context) >= self.limits.context_tokens:
                return Truncated("tokens", self._reward)
            tokens, finish = await self._sample_turn(turn)
            if finish == "length" and len(self._context) >= self.limits.context_tokens:
                return Truncated("tokens", self._reward)
            observation, reward, terminated, truncated, info = await self._step(tokens)
            self._rewards.append(reward)
            self._components |= info.get("reward_components", {})
            if terminated:
                return Finished(self._reward)
            if truncated:
                return Truncated("turns", self._reward)
            results = info.get("tool_results", ())
            self._tool_calls += len(results)
            status = ",".join(result.status for result in results)
            for segment in self.chat.reply(
                observation.messages, ended=finish == "stop", tools=observation.tools
            ):
                self._append(segment, turn=turn + 1, tool_status=status)
            if self.clock() - started > self.limits.episode_s:
                return Truncated("seconds", self._reward)
        return Truncated("turns", self._reward)

    @property
    def _reward(self) -> float:
        return sum(self._rewards)

    async def _reset(self) -> Observation:
        with blame(EnvError, f"reset of task {self._task.id}"):
            async with asyncio.timeout(self.limits.reset_s):
                options = {"task": self._task, "sample": self.sample}
                observation, _ = await self.env.reset(seed=self.seed, options=options)
        return observation

    async def _step(self, tokens: Sequence[int]) -> Step:
        action = self.chat.parse(tokens)
        with blame(EnvError, f"step of task {self._task.id}"):
            async with asyncio.timeout(self.limits.step_s):
                answer = await self.env.step(action)
        if not math.isfinite(answer[1]):
            raise EnvError(
                f"step of task {self._task.id}: the reward is {answer[1]}, and a reward must be a "
                "finite number; mend the reward function"
            )
        return answer

    def _check_prompt(self) -> None:
        if len(self._context) >= self.limits.context_tokens:
            raise ConfigError(
                f"the prompt of task {self._task.id} has {len(self._context)} tokens, and "
                f"engine.context_tokens is {self.limits.context_tokens}, which leaves none to "
                "sample; raise engine.context_tokens or shorten the prompt"
            )

    async def _sample_turn(self, turn: int) -> tuple[list[int], str]:
        """Sample until the turn ends; an aborted request goes on from its exact last token."""
        tokens: list[int] = []
        deadline = self.clock() + self.limits.turn_s
        while True:
            room = self.limits.context_tokens - len(self._context)
            budget = min(self.limits.max_turn_tokens - len(tokens), room)
            if budget <= 0:
                return tokens, "length"
            completion = await self._generate(budget, deadline - self.clock(), turn, len(tokens))
            tokens += completion.token_ids
            if completion.finish != "aborted":
                return tokens, completion.finish

    async def _generate(self, budget: int, left_s: float, turn: int, done: int) -> Completion:
        request = GenerateRequest(
            id=f"{self._task.id}/{self.seed}/{self.sample}/{turn}/{done}",
            prompt=tuple(self._context),
            max_new_tokens=budget,
            sampling=self.sampling,
            stop_token_ids=self.chat.stop_token_ids,
            seed=self.seed,
        )
        began = self.clock()
        with blame(EngineError, f"turn {turn} of task {self._task.id}"):
            async with asyncio.timeout(left_s):
                completion = await self.engine.generate(request)
        if completion.token_ids:
            self._at = self.tree.add(
                Node(
                    parent=self._at,
                    source="sampled",
                    token_ids=completion.token_ids,
                    logprobs=completion.logprobs,
                    versions=completion.versions,
                    turn=turn,
                    seconds=self.clock() - began,
                )
            )
            self._context += completion.token_ids
        return completion

    def _append(self, segment: TokenSegment, *, turn: int, tool_status: str = "") -> None:
        if not segment.token_ids:
            return
        node = Node(
            parent=self._at,
            source=segment.source,
            token_ids=segment.token_ids,
            images=segment.images,
            turn=turn,
            tool_status=tool_status if segment.source == "tool" else "",
        )
        self._at = self.tree.share(node)
        self._context += segment.token_ids

    async def _close(self) -> None:
        with blame(EnvError, f"close of task {self._task.id}"):
            async with asyncio.timeout(CLOSE_S):
                await self.env.close()
