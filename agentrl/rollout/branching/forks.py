"""One tree in the making: the topology's state, and the environments that no episode plays yet.

`BranchingTopology` begins the rollouts around it. A copy that cannot be made costs the branch and
nothing else: it is recorded, and its place is free again.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from agentrl.env import Env, ForkStrategy
from agentrl.errors import EnvError, ForkUnsupported, RolloutError, blame
from agentrl.rollout.branching.decision import (
    BranchDecision,
    BranchPoint,
    BranchPointReached,
    Path,
    PlannedRollout,
)
from agentrl.rollout.branching.topology import Event, TreePlanner, restore
from agentrl.rollout.branching.tree_state import PathEnded, PathReopened
from agentrl.rollout.env_replay import ReplayMismatch, close_world, replay
from agentrl.rollout.episode import EpisodeLimits, EpisodePosition, TopLogprobs
from agentrl.runtime.seeds import derive
from agentrl.runtime.threads import await_to_the_end
from agentrl.task import Task

S = TypeVar("S")

Begin = Callable[[Sequence[PlannedRollout]], None]

_log = logging.getLogger(__name__)
_warned: set[type] = set()
"""Classes of environments that cannot be forked, and have been named in the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkAttempt:
    """One attempt to copy a world."""

    origin: BranchPoint
    path: Path | None
    """The trajectory it is for; None for one that is kept for later."""
    strategy: ForkStrategy
    seconds: float
    reason: str = ""
    """Reason for a missing copy, in a word: `unsupported`, `mismatch`, or the kind of failure."""
    error: str = ""
    """The same in full; both are empty when there is a copy."""


@dataclass(slots=True)
class EnvFork:
    """A place, and a copy of the world there; none when it is replayed on demand."""

    place: EpisodePosition | None
    """None at the prompt."""
    env: Env | None


@dataclass(slots=True, kw_only=True)
class TreeGrowth(Generic[S]):
    """A topology at work on one task. Owns the worlds that wait; `release` and `abandon` give them
    to whoever closes them."""

    topology: TreePlanner[S]
    task: Task
    seed: int
    make_env: Callable[[], Env]
    limits: EpisodeLimits = field(default_factory=EpisodeLimits)
    fork_s: float = 60.0
    clock: Callable[[], float] = time.monotonic
    on_event: Callable[[Event, BranchDecision | None], None] = lambda event, decision: None
    on_copy: Callable[[ForkAttempt], None] = lambda copied: None
    replays_late: bool = True
    """Make a replayed world when its branch begins; else before, while the parent waits."""

    state: S = field(init=False)
    decisions: list[BranchDecision] = field(default_factory=list[BranchDecision])
    copies: list[ForkAttempt] = field(default_factory=list[ForkAttempt])
    events: list[Event] = field(default_factory=list[Event])
    unclosed: list[str] = field(default_factory=list[str])
    """Errors of worlds that nobody played and that would not close."""
    _waiting: dict[Path, EnvFork] = field(default_factory=dict[Path, EnvFork])
    _held: dict[BranchPoint, EnvFork] = field(default_factory=dict[BranchPoint, EnvFork])

    def start(self) -> tuple[PlannedRollout, ...]:
        self.state, starts = self.topology.start(self.task.id, seed=self.seed)
        return starts

    def restore(
        self,
        events: Sequence[Event],
        place: Callable[[BranchPoint], EpisodePosition | None],
        *,
        copies: Sequence[ForkAttempt] = (),
    ) -> tuple[PlannedRollout, ...]:
        """Stand where these events lead instead of `start`; return the live trajectories.

        `copies` were made before; one that is made again, since its world is gone, counts once.

        `place` finds where a trajectory has been: its worlds are gone, so branches that have yet to
        begin there get a replayed one. Raises `ValueError` for events of another topology.
        """
        topology = self.topology
        self.state, decisions = restore(topology, self.task.id, seed=self.seed, events=events)
        self.events += events
        self.decisions += decisions
        self.copies += copies
        for origin in topology.find_origins(self.state):
            if position := place(origin):
                self._held[origin] = EnvFork(position, None)
        live = tuple(line.start for line in topology.growth(self.state).lines)
        for start in live:
            if start.origin.turn and (position := place(start.origin)):
                self._waiting[start.path] = EnvFork(position, None)
        return live

    def env_seed(self, start: PlannedRollout) -> int:
        """Return the environment's seed: all that begins at one root begins in one world."""
        return derive(self.seed, self.task.id, start.path[0])

    def is_ended(self, start: PlannedRollout) -> bool:
        """Return whether the place of a start is a leaf."""
        return start.sample in self.topology.growth(self.state).ledger.ended

    async def world(
        self, start: PlannedRollout, watch: Callable[[Env], Env] = lambda env: env
    ) -> EnvFork | None:
        """Return the world a trajectory begins in; None when it cannot be made.

        Then `fork_failed` is next. `watch` wraps an environment while it is copied.
        """
        if start.origin.turn == 0:
            return EnvFork(None, self.make_env())
        waiting = self._waiting.pop(start.path, None)
        if waiting is not None and waiting.env is not None:
            return waiting
        source = waiting or self._held.get(start.origin)
        if source is None:
            return None
        env = None if source.env is None else watch(source.env)
        return await self._copy_world(start.origin, start.path, EnvFork(source.place, env))

    async def reach_boundary(
        self, boundary: BranchPointReached, place: EpisodePosition, env: Env, *, begin: Begin
    ) -> None:
        """Ask the topology, and make the copies it wants while the world stands still."""
        self.state, decision = self.topology.reach_boundary(self.state, boundary)
        self._note(boundary, decision)
        queue = deque(decision.children)
        try:
            while queue:
                source, late = EnvFork(place, env), self.replays_late
                world = await self._copy_world(queue[0].origin, queue[0].path, source, later=late)
                child = queue.popleft()
                if world is None:
                    begin(self.fork_failed(child))
                else:
                    self._waiting[child.path] = world
                    begin([child])
        finally:
            # Whoever stops the parent meanwhile must not take these places with it.
            for child in queue:
                begin(self.fork_failed(child))
        origin = BranchPoint(path=boundary.path, turn=boundary.turn)
        # A root that failed and was begun again passes places that are held already.
        if decision.keep and origin not in self._held:
            world = await self._copy_world(origin, None, EnvFork(place, env), later=True)
            if world is not None:
                self._held[origin] = world

    def fork_failed(self, start: PlannedRollout) -> tuple[PlannedRollout, ...]:
        self._note(start, None)
        self.state, starts = self.topology.fork_failed(self.state, start)
        return starts

    def finish_path(self, ended: PathEnded) -> tuple[PlannedRollout, ...]:
        self._note(ended, None)
        self.state, starts = self.topology.finish_path(self.state, ended)
        return starts

    def reopen_path(self, start: PlannedRollout) -> tuple[PlannedRollout, ...]:
        again = PathReopened(start=start)
        self._note(again, None)
        self.state, starts = self.topology.reopen_path(self.state, again)
        return starts

    def release(self) -> list[Env]:
        """Let go of the worlds that nothing can begin from any more, and return them."""
        origins = self.topology.find_origins(self.state)
        live = {line.start.path for line in self.topology.growth(self.state).lines}
        worlds = [self._held.pop(origin) for origin in [*self._held] if origin not in origins]
        worlds += [self._waiting.pop(path) for path in [*self._waiting] if path not in live]
        return [world.env for world in worlds if world.env is not None]

    def abandon(self) -> list[Env]:
        """Let go of all worlds, and return them."""
        worlds = (*self._held.values(), *self._waiting.values())
        self._held, self._waiting = {}, {}
        return [world.env for world in worlds if world.env is not None]

    async def close(self, worlds: Iterable[Env]) -> None:
        """Close worlds that nobody plays, all at once; a cancelled caller waits for all of them.

        They took part in nothing, and whoever owns their sandboxes closes those.
        """
        closing = asyncio.gather(*map(close_world, worlds), return_exceptions=True)
        for end in await await_to_the_end(closing):
            if isinstance(end, RolloutError | asyncio.CancelledError):
                self.unclosed.append(str(end) or "the environment cancelled its own close")
            elif end is not None:
                raise end

    async def _copy_world(
        self, origin: BranchPoint, path: Path | None, source: EnvFork, *, later: bool = False
    ) -> EnvFork | None:
        """Return a copy of a world, or None after recording why there is none.

        With `later` a world that is replayed is not made yet: nothing has to stand still for it.
        """
        strategy = "replay" if source.env is None else source.env.fork_strategy
        if strategy == "replay" and later:
            return EnvFork(source.place, None)
        began = self.clock()
        error, reason, env = "", "", None
        try:
            env = (
                await self._replay_env(source)
                if strategy == "replay"
                else await self._fork_env(source)
            )
        except ReplayMismatch as failure:
            error, reason = str(failure), "mismatch"
        except ForkUnsupported as failure:
            error, reason = str(failure), "unsupported"
            if type(source.env) not in _warned:
                _warned.add(type(source.env))
                _log.warning("a trajectory could not branch, nor will the next ones: %s", error)
        except RolloutError as failure:
            error, reason = str(failure), failure.kind
        copied = ForkAttempt(
            origin=origin,
            path=path,
            strategy=strategy,
            seconds=self.clock() - began,
            reason=reason,
            error=error,
        )
        if reason or not any((one.origin, one.path) == (origin, path) for one in self.copies):
            self.copies.append(copied)
            self.on_copy(copied)
        return None if env is None else EnvFork(source.place, env)

    async def _fork_env(self, source: EnvFork) -> Env:
        assert source.env is not None
        with blame(EnvError, f"fork of task {self.task.id} (fork_s={self.fork_s:g})"):
            async with asyncio.timeout(self.fork_s):
                return await source.env.fork()

    async def _replay_env(self, source: EnvFork) -> Env:
        assert source.place is not None
        assert source.place.history is not None
        limits = self.limits
        return await replay(
            self.make_env, source.place.history, reset_s=limits.reset_s, step_s=limits.step_s
        )

    def _note(self, event: Event, decision: BranchDecision | None) -> None:
        self.events.append(event)
        if decision is not None:
            self.decisions.append(decision)
        self.on_event(event, decision)


@dataclass(slots=True)
class BranchPointReporter(Generic[S]):
    """One episode's way to the topology."""

    growing: TreeGrowth[S]
    start: PlannedRollout
    env: Env
    begin: Begin
    passed: Callable[[], object] = lambda: None
    """Called at every boundary, before the topology is asked."""
    before_tokens: int = 0
    """Tokens that a kept trajectory had added before this episode resumed it."""

    @property
    def top_logprobs(self) -> int:
        signal = self.growing.topology.signal
        return signal.top_k if signal else 0

    def probe_tokens(self, turn: int) -> int:
        growing = self.growing
        return growing.topology.probe_tokens(growing.state, self.start.path, turn)

    async def reach_boundary(
        self, place: EpisodePosition, *, added_tokens: int, top: TopLogprobs
    ) -> None:
        self.passed()
        signal = self.growing.topology.signal
        boundary = BranchPointReached(
            path=self.start.path,
            turn=place.turn,
            node=place.node,
            context_tokens=place.context_tokens,
            tokens=self.before_tokens + added_tokens,
            probe=signal.measure([[x for _, x in row] for row in top]) if signal else None,
        )
        await self.growing.reach_boundary(boundary, place, self.env, begin=self.begin)
        await self.growing.close(self.growing.release())
