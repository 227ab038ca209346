"""Grows one task's tree: begins what the topology says, copies worlds, reports what came of it.

The topology decides; this edge only carries out. A copy that cannot be made costs the branch and
nothing else: it is recorded, and its place is free again.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from agentrl.env import Env, ForkStrategy
from agentrl.errors import EnvError, ForkUnsupported, RolloutError, blame
from agentrl.policy import PolicyEngine, Sampling
from agentrl.rollout.branching.decision import Boundary, BranchDecision, Origin, Path, Start
from agentrl.rollout.branching.growth import Ended
from agentrl.rollout.branching.topology import Event, Topology
from agentrl.rollout.episode import Chat, Episode, EpisodeLimits, Place, TopLogprobs
from agentrl.rollout.replay import close_world, replay
from agentrl.seeds import derive
from agentrl.task import Task
from agentrl.trajectory import Failed, Leaf, Tree

S = TypeVar("S")


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """One attempt to copy a world."""

    origin: Origin
    path: Path | None
    """The trajectory it is for; None for one that is kept for later."""
    strategy: ForkStrategy
    seconds: float
    error: str = ""
    """Why there is no copy; empty when there is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grown:
    """One task's finished tree, and why it has its shape."""

    tree: Tree
    decisions: tuple[BranchDecision, ...]
    copies: tuple[Copied, ...]
    starts: tuple[Start, ...]
    """One per leaf of the tree, in the order they ended."""
    events: tuple[Event, ...]
    """`topology.restore` makes the last state of them."""
    discarded: tuple[Leaf, ...]
    """Failures that were begun again or replaced; they are no leaves of the tree."""
    state: Any
    """The topology's last, such as a `BalancedState`, whose `observed` goes on to later tasks."""
    unclosed: tuple[str, ...]
    """Errors of worlds that nobody played and that would not close."""


@dataclass(slots=True)
class _World:
    """A place, and a copy of the world there; none when it is replayed on demand."""

    place: Place | None
    """None at the prompt."""
    env: Env | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Grower(Generic[S]):
    """Grows trees of one topology. Every trajectory gets a world of its own."""

    topology: Topology[S]
    make_env: Callable[[], Env]
    engine: PolicyEngine
    chat: Chat
    limits: EpisodeLimits = field(default_factory=EpisodeLimits)
    fork_s: float = 60.0
    """Deadline of one native copy; a replay has the deadlines of its reset and its steps."""
    clock: Callable[[], float] = time.monotonic

    async def grow(
        self,
        task: Task,
        *,
        seed: int,
        sampling: Sampling,
        slot: Callable[[], AbstractAsyncContextManager[object]] = nullcontext,
        on_event: Callable[[Event, BranchDecision | None], None] = lambda event, decision: None,
        on_leaf: Callable[[Tree, Leaf], None] = lambda tree, leaf: None,
    ) -> Grown:
        """Return the tree of a task, with the leaves of the topology's budget.

        `slot` is entered by every trajectory while it plays. `on_event` hears of everything before
        it takes effect, in the order in which `restore` wants it. Cancelling the call ends all
        trajectories and closes all worlds; a `ConfigError` does too, and rises in a group.
        """
        return await _Growing(self, Tree(task), seed, sampling, slot, on_event, on_leaf).run()


@dataclass(slots=True)
class _Growing(Generic[S]):
    """One tree in the making. Owns the worlds that no episode plays yet."""

    grower: Grower[S]
    tree: Tree
    seed: int
    sampling: Sampling
    slot: Callable[[], AbstractAsyncContextManager[object]]
    on_event: Callable[[Event, BranchDecision | None], None]
    on_leaf: Callable[[Tree, Leaf], None]
    tasks: asyncio.TaskGroup = field(default_factory=asyncio.TaskGroup)

    state: S = field(init=False)
    _waiting: dict[Path, _World] = field(default_factory=dict[Path, _World])
    """Worlds of branches that have not begun."""
    _held: dict[Origin, _World] = field(default_factory=dict[Origin, _World])
    """Worlds that branches may yet be copied from."""
    _decisions: list[BranchDecision] = field(default_factory=list[BranchDecision])
    _copies: list[Copied] = field(default_factory=list[Copied])
    _starts: list[Start] = field(default_factory=list[Start])
    _events: list[Event] = field(default_factory=list[Event])
    _discarded: list[Leaf] = field(default_factory=list[Leaf])
    _unclosed: list[str] = field(default_factory=list[str])

    async def run(self) -> Grown:
        """Grow until nothing lives and nothing begins."""
        self.state, starts = self.grower.topology.start(self.tree.task.id, seed=self.seed)
        try:
            async with self.tasks:
                self._begin(starts)
        finally:
            left = (*self._waiting.values(), *self._held.values())
            self._waiting, self._held = {}, {}
            await self._close(left)
        return Grown(
            tree=self.tree,
            decisions=tuple(self._decisions),
            copies=tuple(self._copies),
            starts=tuple(self._starts),
            events=tuple(self._events),
            discarded=tuple(self._discarded),
            state=self.state,
            unclosed=tuple(self._unclosed),
        )

    def _begin(self, starts: Sequence[Start]) -> None:
        for start in starts:
            self.tasks.create_task(self._play(start))

    async def _play(self, start: Start) -> None:
        async with self.slot():
            if start.origin.turn == 0:
                world = _World(None, self.grower.make_env())
            elif (world := await self._world(start)) is None:
                return
            env = world.env
            assert env is not None
            episode = Episode(
                env=env,
                engine=self.grower.engine,
                chat=self.grower.chat,
                tree=self.tree,
                sample=start.sample,
                seed=start.seed,
                # All that begins at one root begins in one world.
                env_seed=derive(self.seed, self.tree.task.id, start.path[0]),
                sampling=self.sampling,
                limits=self.grower.limits,
                clock=self.grower.clock,
                begin=world.place,
                boundaries=_Watch(self, start, env),
            )
            leaf = await episode.run()
        await self._ended(start, leaf, episode.added_tokens)

    async def _world(self, start: Start) -> _World | None:
        """Return the world a branch begins in, or None after reporting that there is none."""
        waiting = self._waiting.pop(start.path, None)
        if waiting is not None and waiting.env is not None:
            return waiting
        source = waiting or self._held.get(start.origin)
        made = None if source is None else await self._copied(start.origin, start.path, source)
        if made is None:
            await self._fork_failed(start)
        return made

    async def at_boundary(self, start: Start, boundary: Boundary, place: Place, env: Env) -> None:
        """Ask the topology, and make the copies it wants while the world stands still."""
        self.state, decision = self.grower.topology.at_boundary(self.state, boundary)
        self._note(boundary, decision)
        for child in decision.children:
            world = await self._copied(child.origin, child.path, _World(place, env), later=True)
            if world is None:
                await self._fork_failed(child)
            else:
                self._waiting[child.path] = world
                self._begin([child])
        origin = Origin(path=start.path, turn=boundary.turn)
        # A root that failed and was begun again passes places that are held already.
        if decision.keep and origin not in self._held:
            world = await self._copied(origin, None, _World(place, env), later=True)
            if world is not None:
                self._held[origin] = world
        await self._let_go()

    async def _copied(
        self, origin: Origin, path: Path | None, source: _World, *, later: bool = False
    ) -> _World | None:
        """Return a copy of a world, or None after recording why there is none.

        With `later` a world that is replayed is not made yet: nothing has to stand still for it.
        """
        strategy = "replay" if source.env is None else source.env.fork_strategy
        if strategy == "replay" and later:
            return _World(source.place, None)
        began = self.grower.clock()
        error, env = "", None
        try:
            env = await self._replayed(source) if strategy == "replay" else await self._fork(source)
        except (RolloutError, ForkUnsupported) as failure:
            error = str(failure)
        seconds = self.grower.clock() - began
        self._copies.append(
            Copied(origin=origin, path=path, strategy=strategy, seconds=seconds, error=error)
        )
        return None if env is None else _World(source.place, env)

    async def _fork(self, source: _World) -> Env:
        assert source.env is not None
        with blame(EnvError, f"fork of task {self.tree.task.id} (fork_s={self.grower.fork_s:g})"):
            async with asyncio.timeout(self.grower.fork_s):
                return await source.env.fork()

    async def _replayed(self, source: _World) -> Env:
        assert source.place is not None
        assert source.place.history is not None
        limits = self.grower.limits
        return await replay(
            self.grower.make_env,
            source.place.history,
            reset_s=limits.reset_s,
            step_s=limits.step_s,
        )

    async def _fork_failed(self, start: Start) -> None:
        self._note(start, None)
        self.state, starts = self.grower.topology.fork_failed(self.state, start)
        self._begin(starts)
        await self._let_go()

    async def _ended(self, start: Start, leaf: Leaf, tokens: int) -> None:
        topology = self.grower.topology
        # What was stopped on purpose is not begun again.
        broke = isinstance(leaf.outcome, Failed) and leaf.outcome.kind != "cancelled"
        ended = Ended(path=start.path, tokens=tokens, failed=broke)
        self._note(ended, None)
        self.state, starts = topology.finished(self.state, ended)
        if start.sample in topology.growth(self.state).ledger.ended:
            self.tree.end(leaf)
            self._starts.append(start)
            self.on_leaf(self.tree, leaf)
        else:
            self._discarded.append(leaf)
        self._begin(starts)
        await self._let_go()

    def _note(self, event: Event, decision: BranchDecision | None) -> None:
        self._events.append(event)
        if decision is not None:
            self._decisions.append(decision)
        self.on_event(event, decision)

    async def _let_go(self) -> None:
        """Close the kept worlds that nothing can begin from any more."""
        kept = self.grower.topology.kept(self.state)
        await self._close(
            [self._held.pop(origin) for origin in [*self._held] if origin not in kept]
        )

    async def _close(self, worlds: Sequence[_World]) -> None:
        for env in (world.env for world in worlds if world.env is not None):
            try:
                await close_world(env)
            except RolloutError as error:
                # It took part in nothing; whoever owns its sandbox closes that.
                self._unclosed.append(str(error))


@dataclass(slots=True)
class _Watch(Generic[S]):
    """One episode's way to the topology."""

    growing: _Growing[S]
    start: Start
    env: Env

    @property
    def top_logprobs(self) -> int:
        """Return what the signal needs."""
        signal = self.growing.grower.topology.signal
        return signal.top_k if signal else 0

    def probe_tokens(self, turn: int) -> int:
        """Ask the topology."""
        topology = self.growing.grower.topology
        return topology.probe_tokens(self.growing.state, self.start.path, turn)

    async def at_boundary(self, place: Place, *, added_tokens: int, top: TopLogprobs) -> None:
        """Turn what the episode saw into a boundary."""
        signal = self.growing.grower.topology.signal
        boundary = Boundary(
            path=self.start.path,
            turn=place.turn,
            node=place.node,
            context_tokens=place.context_tokens,
            tokens=added_tokens,
            probe=signal.measure([[x for _, x in row] for row in top]) if signal else None,
        )
        await self.growing.at_boundary(self.start, boundary, place, self.env)
