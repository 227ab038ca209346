"""Steps 2 to 4 of the flow: one environment and the policy in turn, recorded on a tree.

This is the boundary where a failure becomes data: whatever an environment, a tool, a sandbox or the
engine raises ends here as a `Failed` leaf. Cancellation and configuration errors rise.
"""

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Protocol

from agentrl.env import Action, Env, Observation, Patch, Step
from agentrl.errors import (
    CancelledRollout,
    ConfigError,
    EngineError,
    EnvError,
    RolloutError,
    WorldLost,
    blame,
)
from agentrl.policy import Completion, GenerateRequest, PolicyEngine, Sampling
from agentrl.rollout.chat import Chat, TokenSegment
from agentrl.rollout.image_window import without_images
from agentrl.rollout.patch import asking, forced_tokens, nodes_of_turn
from agentrl.rollout.rebuilding import Rebuilding
from agentrl.rollout.recorder import TrajectoryRecord
from agentrl.rollout.replay import History
from agentrl.task import Task
from agentrl.trajectory import Failed, Finished, Leaf, Limit, Node, Outcome, Tree, Truncated

CLOSE_S = 10.0
"""Deadline of an environment's close: it must not hold back the next trajectory."""


class StoppedTrajectory(CancelledRollout):
    """The engine's side has no more for this trajectory: it is truncated and keeps its reward."""

    def __init__(self, limit: Limit, why: str) -> None:
        super().__init__(why)
        self.limit: Limit = limit


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
    images: int | None = None
    """How many of the last images stay in a context; None keeps all."""


TopLogprobs = Sequence[tuple[tuple[int, float], ...]]
"""As in `Completion.top_logprobs`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """An episode where the policy is about to speak: all that a branch from there takes over."""

    node: int | None
    """The end of the context on the tree."""
    turn: int
    context_tokens: int
    """Length of the context."""
    turn_rewards: tuple[float, ...] = ()
    components: Mapping[str, float] = field(default_factory=dict[str, float])
    tool_calls: int = 0
    seconds: float = 0.0
    """Since the root began."""
    history: History | None = None
    """What the environment saw and said, for replaying it."""
    begun: tuple[int, ...] = ()
    """Tokens of the turn that are sampled already; they end the context."""
    decided: bool = True
    """Whether it is settled what branches here: a branch begins inside a boundary."""


class Boundaries(Protocol):
    """Who is asked where a turn begins, and may branch there; see `agentrl.rollout.branching`."""

    @property
    def top_logprobs(self) -> int:
        """How many log-probs per token to ask for while probing."""
        ...

    def probe_tokens(self, turn: int) -> int:
        """Return how many tokens to sample before `at_boundary`; they stay, whatever it does."""
        ...

    async def at_boundary(self, place: Place, *, added_tokens: int, top: TopLogprobs) -> None:
        """Take note of a turn's beginning, while the environment stands still.

        `place` is where the turn begins, its probe not in it; `added_tokens` what this episode has
        added to what it began with, its probe among them.
        """
        ...


@dataclass(slots=True)
class Episode:
    """One trajectory in the making. Owns its environment; `run` closes it.

    With `begin` the environment is a copy of the world at that place, and the trajectory goes on
    from there: nothing is reset, and nothing of its context is made again.
    """

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
    env_seed: int | None = None
    """Of the environment, where it is not `seed`."""
    begin: Place | None = None
    boundaries: Boundaries | None = None
    entropies: bool = False
    """Whether the entropies of sampled tokens are asked for and kept."""
    record: TrajectoryRecord | None = None
    """Who keeps what happens, before anything else acts on it."""
    rebuilding: Rebuilding | None = None
    """Makes a world again that was lost; None, and the trajectory fails with it."""

    _at: int | None = None
    _context: list[int] = field(default_factory=list[int])
    _rewards: list[float] = field(default_factory=list[float])
    _components: dict[str, float] = field(default_factory=dict[str, float])
    _tool_calls: int = 0
    _given_tokens: int = 0
    _left_tokens: int = 0
    """Of the contexts that were left behind."""
    _history: History | None = None
    _exchange: tuple[Action, Step] | None = None
    """What was done last, and what answered it."""

    async def run(self) -> Leaf:
        """Play to the end and return the leaf, which is not yet recorded on the tree."""
        started = self.clock() - (self.begin.seconds if self.begin else 0.0)
        try:
            outcome = await self._played_and_closed(started)
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
    def added_tokens(self) -> int:
        """Return how many tokens the episode has added to what it began with."""
        return self._left_tokens + len(self._context) - self._given_tokens

    @property
    def _task(self) -> Task:
        return self.tree.task

    async def _played_and_closed(self, started: float) -> Outcome:
        try:
            outcome = await self._play(started)
        except StoppedTrajectory as stopped:
            outcome = Truncated(stopped.limit, self._reward)
        except BaseException:
            # Why it ended counts, and not that its environment did not close after that either.
            with suppress(RolloutError):
                await self._close()
            raise
        await self._close()
        return outcome

    async def _play(self, started: float) -> Outcome:
        first = await self._open(started)
        for turn in range(first, self.limits.max_turns):
            if len(self._context) >= self.limits.context_tokens:
                return Truncated("tokens", self._reward)
            tokens, finish = await self._sample_turn(turn, started)
            if finish == "length" and len(self._context) >= self.limits.context_tokens:
                return Truncated("tokens", self._reward)
            stepped = self.clock()
            observation, reward, terminated, truncated, info = await self._step(tokens)
            step_s = self.clock() - stepped
            self._rewards.append(reward)
            self._components |= info.get("reward_components", {})
            if terminated or truncated:
                self._record_last_step(started)
                return Finished(self._reward) if terminated else Truncated("turns", self._reward)
            results = info.get("tool_results", ())
            self._tool_calls += len(results)
            status = ",".join(result.status for result in results)
            ended = finish == "stop"
            if isinstance(patch := info.get("patch"), Patch):
                await self._patch(patch, turn, ended=ended)
                ended = True
            if observation.anew:
                self._begin_anew(observation, turn + 1)
            else:
                for segment in self.chat.reply(
                    observation.messages, ended=ended, tools=observation.tools
                ):
                    self._append(segment, turn=turn + 1, tool_status=status, seconds=step_s)
            self._forget_images(turn + 1)
            await self._record_step(started)
            if self.clock() - started > self.limits.episode_s:
                return Truncated("seconds", self._reward)
        return Truncated("turns", self._reward)

    async def _open(self, started: float) -> int:
        """Stand where the policy speaks first, and return the turn it is about to take."""
        if self.begin is None:
            observation = await self._reset()
            for segment in self.chat.opening(observation.messages, observation.tools or ()):
                self._append(segment, turn=0)
            self._forget_images(0)
            self._check_prompt()
            if self.record is not None:
                self.record.reset(self._at, observation, seconds=self.clock() - started)
                await self.record.settled()
        else:
            self._at = self.begin.node
            if self._at is not None:
                self._context += self.tree.tokens(self._at)
            self._rewards += self.begin.turn_rewards
            self._components |= self.begin.components
            self._tool_calls, self._history = self.begin.tool_calls, self.begin.history
        self._given_tokens = len(self._context)
        return 0 if self.begin is None else self.begin.turn

    def _begin_anew(self, observation: Observation, turn: int) -> None:
        """Leave the context behind and open another."""
        withdraws = 0 if self._at is None else len(self.tree.context(self._at))
        self._left_tokens += len(self._context)
        self._context = []
        for segment in self.chat.opening(observation.messages, observation.tools or ()):
            self._append(segment, turn=turn, withdraws=withdraws)
            withdraws = 0

    def _forget_images(self, turn: int) -> None:
        """Begin a context of its own, without the oldest images, where there are too many."""
        most, at = self.limits.images, self._at
        if most is None or at is None or len(spans := self.tree.images(at)) <= most:
            return
        tokens, kept = without_images(self.chat, self._context, spans, count=len(spans) - most)
        self._at = self.tree.add(
            Node(
                parent=at,
                source="prompt",
                token_ids=tokens,
                images=tuple(span.image for span in kept),
                image_spans=tuple((span.start, span.stop) for span in kept),
                turn=turn,
                withdraws=len(self.tree.context(at)),
            )
        )
        self._left_tokens += len(self._context)
        self._context = [*tokens]

    @property
    def _reward(self) -> float:
        return sum(self._rewards)

    async def _reset(self) -> Observation:
        seed = self.seed if self.env_seed is None else self.env_seed
        with blame(EnvError, f"reset of task {self._task.id}"):
            async with asyncio.timeout(self.limits.reset_s):
                options = {"task": self._task, "sample": self.sample}
                observation, _ = await self.env.reset(seed=seed, options=options)
        if self.boundaries is not None or self.rebuilding is not None:
            self._history = History.begun(
                self._task, sample=self.sample, seed=seed, observation=observation
            )
        return observation

    async def _step(self, tokens: Sequence[int]) -> Step:
        action = self.chat.parse(tokens)
        answer = await self._answer(action)
        if not math.isfinite(answer[1]):
            raise EnvError(
                f"step of task {self._task.id}: the reward is {answer[1]}, and a reward must be a "
                "finite number; mend the reward function"
            )
        if self._history is not None:
            self._history = self._history.after(action, answer)
        self._exchange = (action, answer)
        return answer

    async def _answer(self, action: Action) -> Step:
        """Have the world answer; one that is lost over it is made again, and asked again."""
        while True:
            try:
                with blame(EnvError, f"step of task {self._task.id}"):
                    async with asyncio.timeout(self.limits.step_s):
                        return await self.env.step(action)
            except WorldLost as lost:
                if self.rebuilding is None or self._history is None:
                    raise
                await self.rebuilding.again(self.env, self._history, lost)

    async def _record_step(self, started: float) -> None:
        if self.record is not None and self._exchange is not None:
            action, answer = self._exchange
            self.record.stepped(self._at, action, answer, seconds=self.clock() - started)
            await self.record.settled()

    def _record_last_step(self, started: float) -> None:
        if self.record is not None and self._exchange is not None:
            action, answer = self._exchange
            self.record.last_step(action, answer, seconds=self.clock() - started)

    def _check_prompt(self) -> None:
        if len(self._context) >= self.limits.context_tokens:
            raise ConfigError(
                f"the prompt of task {self._task.id} has {len(self._context)} tokens, and "
                f"engine.context_tokens is {self.limits.context_tokens}, which leaves none to "
                "sample; raise engine.context_tokens or shorten the prompt"
            )

    async def _sample_turn(self, turn: int, started: float) -> tuple[list[int], str]:
        """Sample until the turn ends, stopping on the way where a branch could begin."""
        tokens: list[int] = []
        if self.begin is not None and turn == self.begin.turn:
            tokens += self.begin.begun
        asks = self.begin is None or turn > self.begin.turn or not self.begin.decided
        if self.boundaries is not None and asks:
            finish = await self._probe(self.boundaries, turn, tokens, started)
            if finish == "stop":
                return tokens, finish
        return tokens, await self._sample(turn, tokens, upto=self.limits.max_turn_tokens)

    async def _probe(
        self, boundaries: Boundaries, turn: int, tokens: list[int], started: float
    ) -> str:
        """Sample the first tokens of a turn and report the boundary before them."""
        place = Place(
            node=self._at,
            turn=turn,
            context_tokens=len(self._context),
            turn_rewards=tuple(self._rewards),
            components=dict(self._components),
            tool_calls=self._tool_calls,
            seconds=self.clock() - started,
            history=self._history,
        )
        top: list[tuple[tuple[int, float], ...]] = []
        upto = min(boundaries.probe_tokens(turn), self.limits.max_turn_tokens)
        finish = await self._sample(turn, tokens, upto=upto, top=top)
        await boundaries.at_boundary(place, added_tokens=self.added_tokens, top=top)
        return finish

    async def _sample(
        self,
        turn: int,
        tokens: list[int],
        *,
        upto: int,
        top: list[tuple[tuple[int, float], ...]] | None = None,
    ) -> str:
        """Sample until the turn ends or has `upto` tokens; an aborted request goes on from its
        exact last token. Log-probs of the most likely tokens are asked for with `top`."""
        deadline = self.clock() + self.limits.turn_s
        ask = self.boundaries.top_logprobs if self.boundaries and top is not None else 0
        while True:
            room = self.limits.context_tokens - len(self._context)
            budget = min(upto - len(tokens), room)
            if budget <= 0:
                return "length"
            request = self._request(budget, turn, done=len(tokens), top_logprobs=ask)
            completion = await self._generate(request, deadline - self.clock(), turn)
            tokens += completion.token_ids
            if top is not None:
                top += completion.top_logprobs
            if completion.finish != "aborted":
                return completion.finish
            if self.record is not None and completion.token_ids and self._at is not None:
                self.record.part(self._at)

    def _request(self, budget: int, turn: int, *, done: int, top_logprobs: int) -> GenerateRequest:
        return GenerateRequest(
            id=f"{self._task.id}/{self.seed}/{self.sample}/{turn}/{done}",
            prompt=tuple(self._context),
            max_new_tokens=budget,
            sampling=self.sampling,
            stop_token_ids=self.chat.stop_token_ids,
            top_logprobs=top_logprobs,
            entropies=self.entropies,
            seed=self.seed,
            images=() if self._at is None else self.tree.images(self._at),
        )

    async def _generate(self, request: GenerateRequest, left_s: float, turn: int) -> Completion:
        began = self.clock()
        completion = await self._ask(request, left_s, turn)
        if completion.token_ids:
            self._at = self.tree.add(
                Node(
                    parent=self._at,
                    source="sampled",
                    token_ids=completion.token_ids,
                    logprobs=completion.logprobs,
                    versions=completion.versions,
                    entropies=completion.entropies,
                    turn=turn,
                    seconds=self.clock() - began,
                )
            )
            self._context += completion.token_ids
        return completion

    async def _ask(self, request: GenerateRequest, left_s: float, turn: int) -> Completion:
        with blame(EngineError, f"turn {turn} of task {self._task.id}"):
            async with asyncio.timeout(left_s):
                return await self.engine.generate(request)

    def _append(
        self,
        segment: TokenSegment,
        *,
        turn: int,
        tool_status: str = "",
        seconds: float = 0.0,
        withdraws: int = 0,
    ) -> None:
        if not segment.token_ids:
            return
        node = Node(
            parent=self._at,
            source=segment.source,
            token_ids=segment.token_ids,
            images=segment.images,
            image_spans=segment.image_spans,
            turn=turn,
            tool_status=tool_status if segment.source == "tool" else "",
            seconds=seconds if segment.source == "tool" else 0.0,
            withdraws=withdraws,
        )
        self._at = self.tree.share(node)
        self._context += segment.token_ids

    async def _patch(self, patch: Patch, turn: int, *, ended: bool) -> None:
        """Put the patch in the place of what was sampled, which stays on the tree.

        A thought that is asked for is sampled off the tree: it is no turn of the policy's, and
        nobody trains on it.
        """
        thought: list[int] = []
        if patch.hint:
            asked = asking(self.chat, patch, ended=ended)
            thought = await self._think((*self._context, *asked), turn)
        node = Node(
            parent=self._at,
            source="forced",
            token_ids=forced_tokens(self.chat, patch, thought),
            turn=turn,
            withdraws=nodes_of_turn(self.tree, self._at, turn),
        )
        self._at = self.tree.add(node)
        self._context = [*self.tree.tokens(self._at)]

    async def _think(self, prompt: tuple[int, ...], turn: int) -> list[int]:
        """Sample behind `prompt`, of which nothing is kept on the tree."""
        deadline = self.clock() + self.limits.turn_s
        thought: list[int] = []
        while True:
            room = self.limits.context_tokens - len(prompt) - len(thought)
            budget = min(self.limits.max_turn_tokens - len(thought), room)
            if budget <= 0:
                return thought
            request = replace(
                self._request(budget, turn, done=len(thought), top_logprobs=0),
                id=f"{self._task.id}/{self.seed}/{self.sample}/{turn}/thought/{len(thought)}",
                prompt=(*prompt, *thought),
            )
            completion = await self._ask(request, deadline - self.clock(), turn)
            thought += completion.token_ids
            if completion.finish != "aborted":
                return thought

    async def _close(self) -> None:
        with blame(EnvError, f"close of task {self._task.id}"):
            async with asyncio.timeout(CLOSE_S):
                await self.env.close()
