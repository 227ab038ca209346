"""A topology that begins a few rollouts first and fills a group up later."""

from dataclasses import dataclass

from agentrl.rollout.scheduler.topology import GroupProgress, RolloutTopology


@dataclass(frozen=True, slots=True, kw_only=True)
class RootedTopology(RolloutTopology):
    """A few roots that branch as they go; what is then missing is filled up with fresh ones."""

    roots: int

    def count_missing(self, group: GroupProgress) -> int:
        """Return the roots at first, and once nothing lives any more, what is missing."""
        if group.started == 0:
            return min(self.roots, group.target)
        return 0 if group.live else max(0, group.target - group.valid - group.failed)
