"""Grows one task's tree alone: begins what the topology says, and reports what came of it."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from agentrl.env import Env
from agentrl.policy import PolicyEngine, Sampling
from agentrl.rollout.branching.decision import BranchDecision, Start
from agentrl.rollout.branching.growing import Copied, Growing, Watch
from agentrl.rollout.branching.growth import Ended
from agentrl.rollout.branching.topology import Event, Topology
from agentrl.rollout.chat import Chat
from agentrl.rollout.episode import Episode, EpisodeLimits
from agentrl.task import Task
from agentrl.trajectory import Failed, Leaf, Tree

S = TypeVar("S")


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
    ) -> Grown:
        """Return the tree of a task, with the leaves of the topology's budget.

        `slot` is entered by every trajectory while it plays. `on_event` hears of everything before
        it takes effect, in the order in which `restore` wants it. Cancelling the call ends all
        trajectories and closes all worlds; a `ConfigError` does too, and rises in a group.
        """
        growing = Growing(
            topology=self.topology,
            task=task,
            seed=seed,
            make_env=self.make_env,
            limits=self.limits,
            fork_s=self.fork_s,
            clock=self.clock,
            on_event=on_event,
        )
        return await _Alone(self, growing, Tree(task), sampling, slot).run()


@dataclass(slots=True)
class _Alone(Generic[S]):
    """One tree, with a task per trajectory."""

    grower: Grower[S]
    growing: Growing[S]
    tree: Tree
    sampling: Sampling
    slot: Callable[[], AbstractAsyncContextManager[object]]
    tasks: asyncio.TaskGroup = field(default_factory=asyncio.TaskGroup)
    _starts: list[Start] = field(default_factory=list[Start])
    _discarded: list[Leaf] = field(default_factory=list[Leaf])

    async def run(self) -> Grown:
        """Grow until nothing lives and nothing begins."""
        growing = self.growing
        try:
            async with self.tasks:
                self._begin(growing.start())
        finally:
            await growing.close(growing.abandon())
        return Grown(
            tree=self.tree,
            decisions=tuple(growing.decisions),
            copies=tuple(growing.copies),
            starts=tuple(self._starts),
            events=tuple(growing.events),
            discarded=tuple(self._discarded),
            state=growing.state,
            unclosed=tuple(growing.unclosed),
        )

    def _begin(self, starts: Sequence[Start]) -> None:
        for start in starts:
            self.tasks.create_task(self._play(start))

    async def _play(self, start: Start) -> None:
        growing, grower = self.growing, self.grower
        async with self.slot():
            world = await growing.world(start)
            if world is None:
                self._begin(growing.fork_failed(start))
                await self._let_go()
                return
            env = world.env
            assert env is not None
            episode = Episode(
                env=env,
                engine=grower.engine,
                chat=grower.chat,
                tree=self.tree,
                sample=start.sample,
                seed=start.seed,
                env_seed=growing.env_seed(start),
                sampling=self.sampling,
                limits=grower.limits,
                clock=grower.clock,
                begin=world.place,
                boundaries=Watch(growing, start, env, self._begin),
            )
            leaf = replace(await episode.run(), root=start.path[0])
        await self._ended(start, leaf, episode.added_tokens)

    async def _ended(self, start: Start, leaf: Leaf, tokens: int) -> None:
        # What was stopped on purpose is not begun again.
        broke = isinstance(leaf.outcome, Failed) and leaf.outcome.kind != "cancelled"
        starts = self.growing.finished(Ended(path=start.path, tokens=tokens, failed=broke))
        if self.growing.is_ended(start):
            self.tree.end(leaf)
            self._starts.append(start)
        else:
            self._discarded.append(leaf)
        self._begin(starts)
        await self._let_go()

    async def _let_go(self) -> None:
        await self.growing.close(self.growing.release())
