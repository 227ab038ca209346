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
from itertools import dropwhile
from typing import Final, Protocol, cast

from agentrl.authoring.env_contract import close_env, reset_env, step_env
from agentrl.chat.image_window import drop_images
from agentrl.chat.patch import ask_for_thought, nodes_of_turn, write_patch
from agentrl.chat.renderer import ChatRenderer, TokenSegment
from agentrl.env import (
    Action,
    Env,
    Observation,
    Patch,
    Step,
    TurnRequest,
    TurnUsage,
    checking_conversations,
)
from agentrl.errors import (
    CancelledRollout,
    ConfigError,
    ContextOverflow,
    EngineError,
    EnvError,
    RequestError,
    RolloutError,
    WorldLost,
    blame,
)
from agentrl.events.history import ActionHistory
from agentrl.events.kinds import EnvExchange
from agentrl.events.log import RolloutEmitter
from agentrl.message import Message
from agentrl.policy import Completion, GenerateRequest, PolicyEngine, Sampling
from agentrl.rollout.call_rule import call_opening, read_turn
from agentrl.rollout.earlier_turns import TurnEnds, rewrite_context
from agentrl.rollout.env_recovery import EnvRecovery
from agentrl.rollout.quoted_turns import count_quoted_tokens, read_sampled_turns
from agentrl.runtime.seeds import derive
from agentrl.runtime.threads import run_in_thread
from agentrl.runtime.user_code import append_place
from agentrl.task import Task
from agentrl.trajectory import Failed, Finished, Leaf, Limit, Node, Outcome, Tree, Truncated


class StoppedTrajectory(CancelledRollout):
    """The engine's side has no more for this trajectory: it is truncated and keeps its reward."""

    def __init__(self, limit: Limit, why: str) -> None:
        super().__init__(why)
        self.limit: Limit = limit


CHARACTERS_PER_TOKEN: Final = 16
"""An observation of more characters than so many times `engine.context_tokens` ends its trajectory
as `truncated_observation`: no tokenizer makes it fit, and none is asked to."""
LONGEST_OBSERVATION: Final = 2**22
"""Characters of the longest observation in any context. That of an endpoint has no bound of ours,
and each character is a token there."""
_LONG_CHARACTERS = 2**14
"""From which on text becomes tokens in a thread: the loop is free meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeLimits:
    """Limits of a trajectory's length, and deadlines of its parts."""

    max_turns: int = 8
    max_turn_tokens: int = 256
    context_tokens: int = 1024
    reset_s: float = 60.0
    step_s: float = 60.0
    turn_s: float = 600.0
    episode_s: float = 1800.0
    images: int | None = None
    """Number of the last images that stay in a context; None keeps all."""


TopLogprobs = Sequence[tuple[tuple[int, float], ...]]
"""As in `Completion.top_logprobs`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodePosition:
    """An episode where the policy is about to speak: all that a branch from there takes over."""

    node: int | None
    turn: int
    context_tokens: int
    turn_rewards: tuple[float, ...] = ()
    components: Mapping[str, float] = field(default_factory=dict[str, float])
    tool_calls: int = 0
    seconds: float = 0.0
    """Since the root began."""
    history: ActionHistory | None = None
    begun: tuple[int, ...] = ()
    """Tokens of the turn that are sampled already; they end the context."""
    request: TurnRequest | None = None
    """Request of the observation that the turn answers."""
    decided: bool = True
    """True when the branches here are decided; a branch begins inside a boundary."""


class BranchObserver(Protocol):
    """Branch decisions at the start of turns; see `agentrl.rollout.branching`."""

    @property
    def top_logprobs(self) -> int:
        """Log-probs per token to request while probing."""
        ...

    def probe_tokens(self, turn: int) -> int:
        """Return the number of tokens to sample before `reach_boundary`; they are never removed."""
        ...

    async def reach_boundary(
        self, place: EpisodePosition, *, added_tokens: int, top: TopLogprobs
    ) -> None:
        """Take note of a turn's beginning, while the environment stands still.

        `place` is where the turn begins, its probe not in it; `added_tokens` what this episode has
        added to what it began with, its probe among them.
        """
        ...


@dataclass(slots=True)
class EpisodeRunner:
    """One trajectory in the making. Owns its environment; `run` closes it.

    With `begin` the environment is a copy of the world at that place, and the trajectory goes on
    from there: nothing is reset, and nothing of its context is made again.
    """

    env: Env
    engine: PolicyEngine
    chat: ChatRenderer
    tree: Tree
    sample: int
    seed: int
    """Seed of the environment and of the sampling noise."""
    sampling: Sampling = field(default_factory=Sampling)
    limits: EpisodeLimits = field(default_factory=EpisodeLimits)
    clock: Callable[[], float] = time.monotonic
    env_seed: int | None = None
    """Seed of the environment, where it is not `seed`."""
    begin: EpisodePosition | None = None
    boundaries: BranchObserver | None = None
    entropies: bool = False
    events: RolloutEmitter | None = None
    """Emitter of its turns, before anything else acts on them; None where nobody keeps them."""
    rebuilding: EnvRecovery | None = None
    """Makes a world again that was lost; None, and the trajectory fails with it."""

    _at: int | None = None
    _context: list[int] = field(default_factory=list[int])
    _rewards: list[float] = field(default_factory=list[float])
    _components: dict[str, float] = field(default_factory=dict[str, float])
    _final_answer: str | None = None
    _tool_calls: int = 0
    _given_tokens: int = 0
    _left_tokens: int = 0
    """Tokens of the contexts that were left behind, less those that were taken up again."""
    _noise_seed: int = 0
    _asked: TurnRequest | None = None
    _cached_tokens: int = 0
    """Cached tokens of the turn's prompt, as the engine counted its first request."""
    _history: ActionHistory | None = None
    _exchange: tuple[Action, Step] | None = None
    _turn_ends: TurnEnds | None = None

    def __post_init__(self) -> None:
        # Once: a check against a protocol takes as long as a node of the tree.
        if isinstance(self.chat, TurnEnds):
            self._turn_ends = self.chat

    async def run(self) -> Leaf:
        """Play to the end and return the leaf, which is not yet recorded on the tree."""
        started = self.clock() - (self.begin.seconds if self.begin else 0.0)
        try:
            with checking_conversations(self._check_observation):
                outcome = await self._play_and_close(started)
        except RolloutError as error:
            outcome = Failed(error.kind, append_place(str(error), error))
        return Leaf(
            node=self._at,
            outcome=outcome,
            sample=self.sample,
            turn_rewards=tuple(self._rewards),
            components=self._components,
            answer=self._final_answer,
            seconds=self.clock() - started,
            tool_calls=self._tool_calls,
        )

    @property
    def added_tokens(self) -> int:
        """Number of tokens the episode has added to those it began with."""
        return self._left_tokens + len(self._context) - self._given_tokens

    @property
    def _task(self) -> Task:
        return self.tree.task

    async def _play_and_close(self, started: float) -> Outcome:
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
            observation, reward, terminated, truncated, info = await self._step(tokens, finish)
            step_s = self.clock() - stepped
            self._rewards.append(reward)
            self._components |= info.get("reward_components", {})
            if terminated or truncated:
                answer = info.get("answer")
                self._final_answer = answer if isinstance(answer, str) else None
                self._record_last_step(started)
                return Finished(self._reward) if terminated else Truncated("turns", self._reward)
            results = info.get("tool_results", ())
            self._tool_calls += len(results)
            if _characters(observation) > self._observation_limit:
                self._record_last_step(started)
                return Truncated("observation", self._reward)
            status = ",".join(result.status for result in results)
            if isinstance(patch := info.get("patch"), Patch):
                await self._patch(patch, turn, ended=self._is_ended(self._at, ()))
            self._asked = observation.request
            if observation.anew:
                await self._begin_anew(observation, turn + 1)
            else:
                await self._go_on(observation, turn + 1, tool_status=status, seconds=step_s)
            self._forget_images(turn + 1)
            await self._record_step(started)
            if self.clock() - started > self.limits.episode_s:
                return Truncated("seconds", self._reward)
        return Truncated("turns", self._reward)

    async def _open(self, started: float) -> int:
        """Stand where the policy speaks first, and return the turn it is about to take."""
        if self.begin is None:
            observation = await self._reset()
            self._asked = observation.request
            if (size := _characters(observation)) > self._observation_limit:
                raise self._long_prompt(f"{size} characters")
            await self._open_with(observation)
            self._forget_images(0)
            self._check_prompt()
            if self.events is not None:
                seconds = self.clock() - started
                reset = EnvExchange.resetting(
                    observation, env_seed=self._world_seed, seconds=seconds
                )
                self.events.complete_turn(self._at, reset)
                await self.events.wait_settled()
        else:
            self._at = self.begin.node
            if self._at is not None:
                self._context += self.tree.tokens(self._at)
            self._rewards += self.begin.turn_rewards
            self._components |= self.begin.components
            self._tool_calls, self._history = self.begin.tool_calls, self.begin.history
            self._asked = self.begin.request
        self._noise_seed = noise_seed(self.seed, self.tree, self._at)
        self._given_tokens = len(self._context)
        return 0 if self.begin is None else self.begin.turn

    async def _open_with(self, observation: Observation) -> None:
        """Append the prompt; before one with a hint the prompt without it, which it withdraws."""
        segments = await self._render_segments(observation)
        withdraws = 0
        if observation.unhinted is not None:
            bare = replace(observation, messages=observation.unhinted, unhinted=None)
            unhinted = await self._render_segments(bare)
            if (size := _count_tokens(unhinted)) > (hinted := _count_tokens(segments)):
                raise EnvError(
                    f"the prompt of task {self._task.id} has {size} tokens without its hint and "
                    f"{hinted} with it, but a hint adds to a prompt; give `unhinted` the same "
                    "messages without the hint"
                )
            for segment in unhinted:
                self._append(segment, turn=0)
            withdraws, self._context = len(unhinted), []
        for segment in segments:
            self._append(segment, turn=0, withdraws=withdraws)
            withdraws = 0

    async def _go_on(
        self, observation: Observation, turn: int, *, tool_status: str, seconds: float
    ) -> None:
        resumes = 0
        if observation.after in (None, turn - 1):
            self._rewrite_turns(observation, turn)
        segments = await self._render_segments(observation)
        if observation.after not in (None, turn - 1):
            resumes = self._count_nodes_to(observation.after)
            self._left_tokens += len(self._context)
            path = self.tree.path_ids(cast("int", self._at))
            self._context = [*self.tree.tokens(path[resumes - 1])]
            self._left_tokens -= len(self._context)
        for segment in segments:
            self._append(
                segment, turn=turn, tool_status=tool_status, seconds=seconds, resumes=resumes
            )
            resumes = 0

    def _rewrite_turns(self, observation: Observation, turn: int) -> None:
        """Begin a context of its own where the chat format drops the thinking of earlier turns."""
        if self._at is None:
            return
        context = rewrite_context(self.chat, self.tree, self._at, observation.messages)
        if context is not None:
            self._left_tokens += len(self._context)
            self._context = []
            self._append(context, turn=turn, withdraws=self.tree.context_nodes(self._at))

    async def _begin_anew(self, observation: Observation, turn: int) -> None:
        segments = await self._render_segments(observation)
        if observation.request is not None:
            self._check_own_words(observation, _count_tokens(segments))
        withdraws = 0 if self._at is None else self.tree.context_nodes(self._at)
        self._left_tokens += len(self._context)
        self._context = []
        for segment in segments:
            self._append(segment, turn=turn, withdraws=withdraws)
            withdraws = 0

    async def _render_segments(self, observation: Observation) -> Sequence[TokenSegment]:
        """Render an observation, a long one in a thread; raises as `_render` does."""
        if _characters(observation) > _LONG_CHARACTERS:
            return await run_in_thread(self._render, observation)
        return self._render(observation)

    def _render(self, observation: Observation) -> Sequence[TokenSegment]:
        """Render an observation as segments of its context.

        Raises `RequestError` for a program's conversation that the template cannot render, and
        `ConfigError` for any other.
        """
        opening = call_opening(self.chat, observation.request)
        try:
            if observation.anew or self._at is None:
                segments = self.chat.opening(observation.messages, observation.tools or ())
            else:
                at = self._at
                if observation.after is not None:
                    at = self.tree.path_ids(at)[self._count_nodes_to(observation.after) - 1]
                segments = self.chat.reply(
                    observation.messages,
                    ended=self._is_ended(at, observation.messages),
                    tools=observation.tools,
                )
        except ConfigError as error:
            if observation.request is None:
                raise
            raise RequestError(str(error)) from error
        return [segment for segment in (*segments, *opening) if segment.token_ids]

    async def _check_observation(self, observation: Observation) -> str | None:
        """Return the reason an observation cannot be shown to the policy; None when it can.

        Raises `ContextOverflow` for one that is too long.
        """
        if (size := _characters(observation)) > self._observation_limit:
            raise ContextOverflow(
                f"the conversation grew by {size} characters, but the limit is "
                f"{self._observation_limit}; send less"
            )
        try:
            segments = await self._render_segments(observation)
        except (ConfigError, EnvError, RequestError) as error:
            return str(error)
        count = _count_tokens(segments)
        if self._at is None or observation.anew:
            self._check_own_words(observation, count)
        return None

    def _check_own_words(self, observation: Observation, count: int) -> None:
        """Raise `ContextOverflow` for a program's new conversation of `count` tokens that leaves no
        room, where it would leave none without the policy's words in it either."""
        if count < self.limits.context_tokens:
            return
        if self._at is not None:
            turns = read_sampled_turns(self.chat, self.tree, self._at)
            if (
                count - count_quoted_tokens(observation.messages, turns)
                < self.limits.context_tokens
            ):
                return
        raise ContextOverflow(
            f"the conversation has {count} tokens, but engine.context_tokens is "
            f"{self.limits.context_tokens}, which leaves no room to sample; send less"
        )

    def _count_nodes_to(self, turn: int) -> int:
        try:
            return self.tree.turn_end(cast("int", self._at), turn)
        except ValueError as error:
            raise EnvError(f"the observation goes on after turn {turn}: {error}") from error

    def _is_ended(self, node: int | None, messages: Sequence[Message]) -> bool:
        """Return whether the turn at `node` needs no end before these messages.

        A context that begins there, without the thinking of its turns, ends with its last turn.
        """
        if node is None:
            return False
        last = self.tree.node(node)
        if last.source in ("forced", "prompt"):
            return True
        if self._turn_ends is not None:
            return self._turn_ends.ends_turn(last.token_ids[-1], messages)
        return last.token_ids[-1] in self.chat.stop_token_ids

    def _forget_images(self, turn: int) -> None:
        """Begin a context of its own, without the oldest images, where there are too many."""
        most, at = self.limits.images, self._at
        if most is None or at is None or self.tree.image_count(at) <= most:
            return
        spans = self.tree.images(at)
        tokens, new_spans = drop_images(self.chat, self._context, spans, count=len(spans) - most)
        self._at = self.tree.add(
            Node(
                parent=at,
                source="prompt",
                token_ids=tokens,
                images=tuple(span.image for span in new_spans),
                image_spans=tuple((span.start, span.stop) for span in new_spans),
                turn=turn,
                withdraws=self.tree.context_nodes(at),
            )
        )
        self._noise_seed = noise_seed(self.seed, self.tree, self._at)
        self._left_tokens += len(self._context)
        self._context = [*tokens]

    @property
    def _reward(self) -> float:
        return math.fsum(self._rewards)

    @property
    def _world_seed(self) -> int:
        return self.seed if self.env_seed is None else self.env_seed

    async def _reset(self) -> Observation:
        seed = self._world_seed
        observation = await reset_env(
            self.env,
            self._task,
            seed=seed,
            options={"sample": self.sample},
            reset_s=self.limits.reset_s,
        )
        if self.boundaries is not None or self.rebuilding is not None:
            self._history = ActionHistory.from_reset(
                self._task, sample=self.sample, seed=seed, observation=observation
            )
        return observation

    async def _step(self, tokens: Sequence[int], finish: str) -> Step:
        action = read_turn(self.chat, self._asked, tokens)
        if self._asked is not None:
            usage = TurnUsage(
                prompt_tokens=len(self._context) - len(tokens),
                completion_tokens=len(tokens),
                cached_tokens=self._cached_tokens,
                finish="stop" if finish == "stop" else "length",
            )
            action = replace(action, usage=usage)
        answer = await self._answer(action)
        if self._history is not None:
            self._history = self._history.add_step(action, answer)
        self._exchange = (action, answer)
        return answer

    async def _answer(self, action: Action) -> Step:
        """Have the world answer; one that is lost over it is made again, and asked again."""
        while True:
            try:
                return await step_env(self.env, self._task, action, step_s=self.limits.step_s)
            except WorldLost as lost:
                if self.rebuilding is None or self._history is None:
                    raise
                await self.rebuilding.rebuild(self.env, self._history, lost)

    async def _record_step(self, started: float) -> None:
        if self.events is not None and self._exchange is not None:
            seconds = self.clock() - started
            self.events.complete_turn(
                self._at, EnvExchange.stepping(*self._exchange, seconds=seconds)
            )
            await self.events.wait_settled()

    def _record_last_step(self, started: float) -> None:
        if self.events is not None and self._exchange is not None:
            seconds = self.clock() - started
            self.events.keep_last_turn(EnvExchange.stepping(*self._exchange, seconds=seconds))

    def _check_prompt(self) -> None:
        if len(self._context) >= self.limits.context_tokens:
            raise self._long_prompt(f"{len(self._context)} tokens")

    def _long_prompt(self, size: str) -> ConfigError:
        return ConfigError(
            f"the prompt of task {self._task.id} has {size}, but engine.context_tokens is "
            f"{self.limits.context_tokens}, which leaves no room to sample; raise "
            "engine.context_tokens or shorten the prompt"
        )

    @property
    def _observation_limit(self) -> int:
        return min(CHARACTERS_PER_TOKEN * self.limits.context_tokens, LONGEST_OBSERVATION)

    async def _sample_turn(self, turn: int, started: float) -> tuple[list[int], str]:
        """Sample until the turn ends, stopping on the way where a branch could begin."""
        tokens: list[int] = []
        self._cached_tokens = 0
        if self.begin is not None and turn == self.begin.turn:
            tokens += self.begin.begun
        asks = self.begin is None or turn > self.begin.turn or not self.begin.decided
        if self.boundaries is not None and asks:
            finish = await self._probe(self.boundaries, turn, tokens, started)
            if finish == "stop":
                return tokens, finish
        return tokens, await self._sample(turn, tokens, upto=self._most_tokens)

    @property
    def _most_tokens(self) -> int:
        max_tokens = None if self._asked is None else self._asked.max_tokens
        return min(self.limits.max_turn_tokens, max_tokens or self.limits.max_turn_tokens)

    async def _probe(
        self, boundaries: BranchObserver, turn: int, tokens: list[int], started: float
    ) -> str:
        place = EpisodePosition(
            node=self._at,
            turn=turn,
            context_tokens=len(self._context),
            turn_rewards=tuple(self._rewards),
            components=dict(self._components),
            tool_calls=self._tool_calls,
            seconds=self.clock() - started,
            history=self._history,
            request=self._asked,
        )
        top: list[tuple[tuple[int, float], ...]] = []
        upto = min(boundaries.probe_tokens(turn), self._most_tokens)
        finish = await self._sample(turn, tokens, upto=upto, top=top)
        await boundaries.reach_boundary(place, added_tokens=self.added_tokens, top=top)
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
            if not tokens:
                self._cached_tokens = completion.prompt_cached_tokens
            tokens += completion.token_ids
            if top is not None:
                top += completion.top_logprobs
            if completion.finish != "aborted":
                return completion.finish
            if self.events is not None and completion.token_ids and self._at is not None:
                self.events.extend_turn(self._at)

    def _request(self, budget: int, turn: int, *, done: int, top_logprobs: int) -> GenerateRequest:
        return GenerateRequest(
            id=f"{self._task.id}/{self.seed}/{self.sample}/{turn}/{done}",
            prompt=tuple(self._context),
            max_new_tokens=budget,
            sampling=self.sampling,
            stop_token_ids=self.chat.stop_token_ids,
            stop_strings=() if self._asked is None else self._asked.stop,
            begun_tokens=done,
            top_logprobs=top_logprobs,
            entropies=self.entropies,
            seed=self._noise_seed,
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
        where = f"turn {turn} of task {self._task.id}"
        with blame(EngineError, where, deadline="rollout.turn_s"):
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
        resumes: int = 0,
    ) -> None:
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
            resumes=resumes,
        )
        self._at = self.tree.share(node)
        self._context += segment.token_ids
        if withdraws or resumes:
            self._noise_seed = noise_seed(self.seed, self.tree, self._at)

    async def _patch(self, patch: Patch, turn: int, *, ended: bool) -> None:
        """Put the patch in the place of what was sampled, which stays on the tree.

        A thought that is asked for is sampled off the tree: it is no turn of the policy's, and
        nobody trains on it.
        """
        if self._asked is not None and self._asked.calls == "required":
            raise EnvError(
                f"turn {turn} is patched, but its request required a tool call, whose beginning "
                "was not sampled; patch turns of other requests"
            )
        thought: list[int] = []
        if patch.hint:
            prompt = ask_for_thought(self.chat, patch, ended=ended)
            thought = await self._think((*self._context, *prompt), turn)
        node = Node(
            parent=self._at,
            source="forced",
            token_ids=write_patch(self.chat, patch, thought),
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
        """Close the environment; a close that was cancelled is begun again, and ends."""
        try:
            await self._close_once()
        except asyncio.CancelledError:
            with suppress(RolloutError):
                await self._close_once()
            raise

    async def _close_once(self) -> None:
        await close_env(self.env, f"close of task {self._task.id}")


def noise_seed(seed: int, tree: Tree, node: int | None) -> int:
    """Return the seed of the sampling noise in the context at `node`.

    The noise of a token depends on its position, so every context after the first one in which
    something was sampled has a seed of its own: a conversation that is begun twice is not answered
    twice alike.
    """
    path = () if node is None else tree.path(node)
    path = dropwhile(lambda part: part.source != "sampled", path)
    turns = [p.turn for p in path if p.resumes or (p.withdraws and p.source == "prompt")]
    return derive(seed, "context", turns[-1]) if turns else seed


def _count_tokens(segments: Sequence[TokenSegment]) -> int:
    return sum(len(segment.token_ids) for segment in segments)


def _characters(observation: Observation) -> int:
    return sum(
        len(part)
        for message in observation.messages
        for part in ((message.content,) if isinstance(message.content, str) else message.content)
        if isinstance(part, str)
    )
