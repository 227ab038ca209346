"""Steps 2 to 5 of the flow: many trajectories at once, bounded, each on its own environment."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from agentrl.env import Env
from agentrl.errors import AgentrlError
from agentrl.policy import PolicyEngine, Sampling
from agentrl.rollout.episode import Chat, Episode, EpisodeLimits
from agentrl.scheduler import Attempt, plan, tries_again
from agentrl.seeds import derive
from agentrl.task import Task
from agentrl.trajectory import Leaf, Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollouts:
    """Turns tasks into trees. Every trajectory gets an environment of its own."""

    make_env: Callable[[], Env]
    engine: PolicyEngine
    chat: Chat
    limits: EpisodeLimits = field(default_factory=EpisodeLimits)
    concurrency: int = 64
    retries: int = 2

    async def collect(
        self,
        tasks: Sequence[Task],
        *,
        group_size: int,
        seed: int,
        sampling: Sampling,
        on_leaf: Callable[[Tree, Leaf], None] = lambda tree, leaf: None,
    ) -> list[Tree]:
        """Return one tree per task with `group_size` leaves each, failures among them.

        Same tasks, seed and weights give the same tokens, however the timing falls. Returns when
        the last trajectory has ended; cancelling the call ends them all and closes their
        environments. `on_leaf` hears of each as it ends.
        """
        trees = [Tree(task) for task in tasks]
        free = asyncio.Semaphore(self.concurrency)

        async def play(attempt: Attempt) -> None:
            tree = trees[attempt.group]
            async with free:
                leaf = await self._episode(tree, attempt, seed, sampling).run()
                number = attempt.number
                while tries_again(leaf.outcome, attempt, retries=self.retries):
                    number += 1
                    attempt = Attempt(group=attempt.group, sample=attempt.sample, number=number)
                    leaf = await self._episode(tree, attempt, seed, sampling).run()
            tree.end(leaf)
            on_leaf(tree, leaf)

        try:
            async with asyncio.TaskGroup() as group:
                for attempt in plan(len(tasks), group_size):
                    group.create_task(play(attempt))
        except ExceptionGroup as errors:
            # Trajectories that meet one wrong configuration all say the same thing: say it once.
            raise (_known(errors) or errors) from None
        return trees

    def _episode(self, tree: Tree, attempt: Attempt, seed: int, sampling: Sampling) -> Episode:
        # A retry plays the same seed: what failed was not the policy's doing.
        return Episode(
            env=self.make_env(),
            engine=self.engine,
            chat=self.chat,
            tree=tree,
            sample=attempt.sample,
            seed=derive(seed, tree.task.id, attempt.sample),
            sampling=sampling,
            limits=self.limits,
        )


def _known(errors: ExceptionGroup[Exception]) -> Exception | None:
    """Return the first of our own errors, however deep it lies."""
    group = errors.subgroup(AgentrlError)
    while isinstance(group, ExceptionGroup):
        first = group.exceptions[0]
        if not isinstance(first, ExceptionGroup):
            return first
        group = first
    return None
