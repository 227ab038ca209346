"""Grows one task's tree alone: begins what the topology says, and reports what came of it."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from agentrl.chat.renderer import ChatRenderer
from agentrl.env import Env
from agentrl.policy import PolicyEngine, Sampling
from agentrl.rollout.branching.decision import BranchDecision, PlannedRollout
from agentrl.rollout.branching.forks import BranchPointReporter, ForkAttempt, TreeGrowth
from agentrl.rollout.branching.topology import Event, TreePlanner
from agentrl.rollout.branching.tree_state import PathEnded
from agentrl.rollout.episode import EpisodeLimits, EpisodeRunner
from agentrl.task import Task
from agentrl.trajectory import Failed, Leaf, Tree

S = TypeVar("S")


@dataclass(frozen=True, slots=True, kw_only=True)
class GrownTree:
    """One task's finished tree, and why it has its shape."""

    tree: Tree
    decisions: tuple[BranchDecision, ...]
    copies: tuple[ForkAttempt, ...]
    starts: tuple[PlannedRollout, ...]
    """One per leaf of the tree, in the order they ended."""
    events: tuple[Event, ...]
    """`topology.restore` makes the last state of them."""
    discarded: tuple[Leaf, ...]
    """Failures that were begun again or replaced; they are no leaves of the tree."""
    state: Any
    """Last state of the topology, such as an `EntropyBalancedState`."""
    unclosed: tuple[str, ...]
    """Errors of worlds that nobody played and that would not close."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeGrower(Generic[S]):
    """Grows trees of one topology. Every trajectory gets a world of its own."""

    topology: TreePlanner[S]
    make_env: Callable[[], Env]
    engine: PolicyEngine
    chat: ChatRenderer
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
    ) -> GrownTree:
        """Return the tree of a task, with the leaves of the topology's budget.

        `slot` is entered by every trajectory while it plays. `on_event` hears of everything before
        it takes effect, in the order in which `restore` wants it. Cancelling the call ends all
        trajectories and closes all worlds; a `ConfigError` does too, and rises in a group.
        """
        growing = TreeGrowth(
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

    grower: TreeGrower[S]
    growing: TreeGrowth[S]
    tree: Tree
    sampling: Sampling
    slot: Callable[[], AbstractAsyncContextManager[object]]
    tasks: asyncio.TaskGroup = field(default_factory=asyncio.TaskGroup)
    _starts: list[PlannedRollout] = field(default_factory=list[PlannedRollout])
    _discarded: list[Leaf] = field(default_factory=list[Leaf])

    async def run(self) -> GrownTree:
        """Grow until nothing lives and nothing begins."""
        growing = self.growing
        try:
            async with self.tasks:
                self._begin(growing.start())
        finally:
            await growing.close(growing.abandon())
        return GrownTree(
            tree=self.tree,
            decisions=tuple(growing.decisions),
            copies=tuple(growing.copies),
            starts=tuple(self._starts),
            events=tuple(growing.events),
            discarded=tuple(self._discarded),
            state=growing.state,
            unclosed=tuple(growing.unclosed),
        )

    def _begin(self, starts: Sequence[PlannedRollout]) -> None:
        for start in starts:
            self.tasks.create_task(self._play(start))

    async def _play(self, start: PlannedRollout) -> None:
        growing, grower = self.growing, self.grower
        async with self.slot():
            world = await growing.world(start)
            if world is None:
                self._begin(growing.fork_failed(start))
                await self._let_go()
                return
            env = world.env
            assert env is not None
            episode = EpisodeRunner(
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
                boundaries=BranchPointReporter(growing, start, env, self._begin),
            )
            leaf = replace(await episode.run(), root=start.path[0])
        await self._ended(start, leaf, episode.added_tokens)

    async def _ended(self, start: PlannedRollout, leaf: Leaf, tokens: int) -> None:
        # What was stopped on purpose is not begun again.
        broke = isinstance(leaf.outcome, Failed) and leaf.outcome.kind != "cancelled"
        starts = self.growing.finish_path(PathEnded(path=start.path, tokens=tokens, failed=broke))
        if self.growing.is_ended(start):
            self.tree.end(leaf)
            self._starts.append(start)
        else:
            self._discarded.append(leaf)
        self._begin(starts)
        await self._let_go()

    async def _let_go(self) -> None:
        await self.growing.close(self.growing.release())
