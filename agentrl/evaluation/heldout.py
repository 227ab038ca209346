"""How good a policy is on tasks it never trained on."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from agentrl.evaluation.report import Report
from agentrl.evaluation.scores import Interval
from agentrl.policy import Sampling
from agentrl.progress import Progress
from agentrl.task import Task
from agentrl.trajectory import Leaf, Tree, reward_of

if TYPE_CHECKING:
    from agentrl.rollout.pool import Rollouts


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The same tasks, samples and seeds every time, so that two evaluations are paired."""

    tasks: tuple[Task, ...]
    samples_per_task: int
    k: tuple[int, ...]
    threshold: float
    """A trajectory passes when its reward is at least this."""
    confidence: float
    interval: Interval = "wilson"
    sampling: Sampling
    seed: int
    about: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What is evaluated on, for the report."""

    async def run(
        self, rollouts: "Rollouts", progress: Progress, phase: str = "evaluate"
    ) -> Report:
        """Play every task and return the report; failures are reported apart, never as zeros."""
        rewards: list[float] = []
        total = len(self.tasks) * self.samples_per_task
        with progress.phase(phase, total=total) as bar:

            def ended(tree: Tree, leaf: Leaf) -> None:
                del tree
                if (reward := reward_of(leaf.outcome)) is not None:
                    rewards.append(reward)
                bar.advance(1, {"reward": sum(rewards) / len(rewards)} if rewards else {})

            # Entropies are for choosing what trains, and cost a pass over the vocabulary per token.
            trees = await replace(rollouts, entropies=False).collect(
                self.tasks,
                group_size=self.samples_per_task,
                seed=self.seed,
                sampling=self.sampling,
                on_leaf=ended,
            )
        return Report.of(
            [trajectory for tree in trees for trajectory in tree.trajectories()],
            k=self.k,
            threshold=self.threshold,
            confidence=self.confidence,
            interval=self.interval,
            about={**self.about, "seed": self.seed, "temperature": self.sampling.temperature},
        )
