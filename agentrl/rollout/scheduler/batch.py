"""Batch for the trainer."""

from dataclasses import dataclass

from agentrl.rollout.scheduler.member import QueuedGroup
from agentrl.rollout.scheduler.staleness import age_histogram, trainable
from agentrl.trajectory import Trajectory, Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutBatch:
    """Batch for the trainer: complete groups, and the rule which of their tokens may train."""

    groups: tuple[QueuedGroup, ...]
    trees: tuple[Tree, ...]
    """One per group, with the leaves it trains on and the failures it carries."""
    version: int
    oldest: int
    """No token that comes later was sampled by an older version."""
    max_age: int | None

    def trainable(self, trajectory: Trajectory) -> tuple[bool, ...]:
        """Return per token whether it may train now: sampled, and within its age bound."""
        return trainable(trajectory.versions, version=self.version, max_age=self.max_age)

    def ages(self) -> dict[int, int]:
        """Return the number of sampled tokens of each age."""
        runs = (t.versions for tree in self.trees for t in tree.trajectories())
        return age_histogram(runs, version=self.version)
