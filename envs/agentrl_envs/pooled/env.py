"""An environment whose episodes are played in a pool: what is the same for every such kind."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar, cast

from agentrl.authoring.task_choice import choose_task
from agentrl.env import Action, ForkStrategy, Info, Observation, Step, ToolSchema
from agentrl.errors import ConfigError, ForkUnsupported
from agentrl.events.history import ActionHistory
from agentrl.message import Content, Message
from agentrl.rollout.env_replay import replay
from agentrl.runtime.seeds import derive
from agentrl.task import Split, Task
from agentrl.tool import ToolContext
from agentrl_envs.accessibility.reading import element_name, read
from agentrl_envs.packs import made_pack
from agentrl_envs.pooled.pool_handle import P, PoolHandle, PoolKind, S

OVER = "The episode was over before this."
"""The answer to what stands in a message after what ends the episode."""


@dataclass(slots=True, kw_only=True)
class PooledEpisode:
    """State of one episode of any kind."""

    task: Task
    goal: str
    """Request to the agent."""
    context: ToolContext
    history: ActionHistory = field(init=False)
    """From the opening on."""
    turns: int = 0
    ended: bool = False


class TaskPack(Protocol):
    """Tasks of any kind."""

    def tasks(self, split: Split, seed: int) -> Iterable[Task]:
        """Yield the tasks of a split, finitely or not; the same ones for the same seed."""
        ...

    def gold(self, task: Task, seen: Sequence[Message]) -> Action:
        """Return the next action of a player that solves `task`, having read these messages.

        Raises `KeyError` for a task nobody here can solve.
        """
        ...


E = TypeVar("E", bound=PooledEpisode)
K = TypeVar("K", bound=TaskPack)


class PooledEnv(ABC, Generic[E, K, P, S]):
    """Tasks of a pack, each played on a part of a pool that is lent for its episode.

    A kind says how an episode begins, what is seen, what a message does and how its part is given
    back; whose the pool is, the record of what was done, its replay for a fork, and what may not be
    called when, are the same for all.
    """

    name: ClassVar[str]
    """Of the kind; seeds of its tools are derived from it."""
    looks_ahead: bool = False
    """Whether `_expects` does anything."""
    forks: ClassVar[tuple[ForkStrategy, ...]]
    """The ways there are to fork one."""

    gold: Callable[[Task, Sequence[Message]], Action]
    """Only there where the pack has players."""

    def __init__(
        self,
        *,
        pack: str | K,
        pack_kwargs: Mapping[str, Any],
        pools: PoolKind[P, S],
        given: P | S | Mapping[str, Any] | None,
        max_turns: int | None,
        system: str,
        fork: ForkStrategy,
        step_s: float,
        gold_names: bool = False,
    ) -> None:
        """Acquire nothing.

        Args:
            pack: The tasks, or `module:name` of what makes them.
            pack_kwargs: What it makes them of.
            pools: The kind of pool.
            given: The pool, which stays the caller's, or its settings.
            max_turns: Messages of the agent before the episode is truncated; None sets no end.
            system: A system message, if any.
            fork: One of `forks`.
            step_s: For one replayed step of a fork.
            gold_names: Let the gold player write the name of the element that it acts on.
        """
        if max_turns is not None and max_turns < 1:
            raise ConfigError(
                f"max_turns must be at least 1, got {max_turns}; use None for no limit"
            )
        if fork not in self.forks:
            *first, last = self.forks
            raise ConfigError(
                f"fork must be {', '.join(first)} or {last} for a {pools.name}, got {fork!r}"
            )
        self.fork_strategy: ForkStrategy = fork
        self._pack: K = made_pack(pack, pack_kwargs)
        self._max_turns = max_turns
        self._system = system
        self._holding = PoolHandle(pools, given)
        self._settings = self._holding.settings
        self._step_s = step_s
        self._resets = 0
        self._episode: E | None = None
        self._forked: Info = {}
        if getattr(self._pack, "has_gold", True):
            self.gold = self._gold_with_name if gold_names else self._pack.gold

    # -- what a kind is ---------------------------------------------------------------------------

    @property
    @abstractmethod
    def tools(self) -> tuple[ToolSchema, ...]:
        """Return the schemas of what an agent can do."""

    @abstractmethod
    async def _begin(self, task: Task, context: ToolContext) -> E:
        """Lend a part of the pool and put the task there; on a failure nothing stays lent."""

    @abstractmethod
    async def _opening(self, episode: E) -> Content:
        """Return the goal and what is seen of it."""

    @abstractmethod
    def _began(self, episode: E) -> Info:
        """Return the info of the opening; it was made, and nobody waits any more."""

    def _expects(self, tasks: Sequence[Task], known_s: float) -> None:
        """Make ready what can be for the episodes that begin next, now that nobody waits.

        `known_s` is when that was so: another environment may have been told later, and sooner be
        here.
        """

    @abstractmethod
    async def _step(self, episode: E, action: Action) -> Step:
        """Do what a message asks for."""

    @abstractmethod
    async def _release(self, episode: E) -> None:
        """Give the episode's part of the pool back."""

    def _gold_with_name(self, task: Task, seen: Sequence[Message]) -> Action:
        """Return the pack's action, with the name of the element that it acts on as its text."""
        action = self._pack.gold(task, seen)
        texts = (one.text for one in reversed(seen) if one.role in ("user", "tool"))
        page = read(next(texts, ""))
        return action if action.text else replace(action, text=element_name(action, page))

    # -- an environment ---------------------------------------------------------------------------

    def tasks(self, split: Split, *, seed: int = 0) -> Iterable[Task]:
        """Yield the tasks of the pack."""
        return self._pack.tasks(split, seed)

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Begin an episode.

        Options: `task`, `sample` (the index within the group), and `next`, the tasks of the
        episodes that begin next here or in other environments of this pool, the first one first.
        """
        known_s = time.monotonic()
        await self._end()
        self._resets += 1
        options = options or {}
        seed = self._resets if seed is None else seed
        task = choose_task(self, seed=seed, options=options)
        sample = int(options.get("sample", 0))
        tools_seed = derive(self.name, seed, task.id, sample)
        context = ToolContext(task_id=task.id, sample=sample, seed=tools_seed, data=task.data)
        episode = await self._begin(task, context)
        try:
            content = await self._opening(episode)
        except BaseException:
            await self._release(episode)
            raise
        system = (Message("system", self._system),) if self._system else ()
        observation = Observation((*system, Message("user", content)), tools=self.tools)
        episode.history = ActionHistory.from_reset(
            task, sample=sample, seed=seed, observation=observation
        )
        self._episode = episode
        if "next" in options:
            with suppress(Exception):  # it is theirs, and they will say so
                self._expects(options["next"], known_s)
        return observation, self._began(episode)

    async def step(self, action: Action) -> Step:
        """Do what a message asks for, in order, and show what is there then."""
        episode = self._running()
        episode.turns += 1
        try:
            step = await self._step(episode, action)
        except BaseException:
            episode.ended = True
            raise
        episode.history = episode.history.add_step(action, step)
        episode.ended = step[2] or step[3]
        step[4].update(self._forked)
        self._forked = {}
        return step

    async def fork(self) -> Self:
        """Return a copy of the episode as it is now; see `fork` of the constructor."""
        episode = self._running()
        if self.fork_strategy == "none":
            raise ForkUnsupported("this environment was created with fork=none")
        began_s = time.monotonic()
        made, how = await self._fork(episode)
        made._forked = {"fork": {"how": how, "seconds": time.monotonic() - began_s}}
        return made

    async def close(self) -> None:
        """Give back what is lent, and close the pool if it is this environment's own."""
        try:
            await self._end()
        finally:
            await self._holding.close()

    # -- an episode -------------------------------------------------------------------------------

    def _running(self) -> E:
        if self._episode is None:
            raise RuntimeError("no episode is running; await env.reset() first")
        if self._episode.ended:
            raise RuntimeError(
                f"the episode of task {self._episode.task.id!r} is over; await env.reset() for "
                "another"
            )
        return self._episode

    async def _end(self) -> None:
        episode, self._episode = self._episode, None
        if episode is not None:
            await self._release(episode)

    async def _fork(self, episode: E) -> tuple[Self, str]:
        """Return a fork, and how it was made: here by doing the same again."""
        reset_s = self._settings.open_s
        fork = await replay(self._another, episode.history, reset_s=reset_s, step_s=self._step_s)
        return cast("Self", fork), "replay"

    def _another(self) -> Self:
        env = object.__new__(type(self))
        vars(env).update(vars(self))
        env._episode, env._forked = None, {}
        env._holding = self._holding.another()
        return env
