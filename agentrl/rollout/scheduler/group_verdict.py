"""Completeness of a group: the point at which its trajectories can train."""

from typing import Literal

from agentrl.rollout.scheduler.topology import GroupProgress

GroupVerdict = Literal["open", "ready", "short"]
"""`open` waits for more of its trajectories; `short` ended with too few that did not fail."""


def judge(group: GroupProgress, *, min_valid: int) -> GroupVerdict:
    """Return the verdict on a group after one of its trajectories ended.

    It is ready as soon as it has all it trains on, or when there is nothing left to wait for. Ask
    the topology first: a trajectory that it still wants has to be counted as live. A group that
    trains on fewer than `min_valid` needs no more than those.
    """
    if group.valid < group.target and group.live:
        return "open"
    return "ready" if group.valid >= min(min_valid, group.target) else "short"


def failures_kept(group: GroupProgress) -> int:
    """Return the number of failed trajectories a ready group carries: the gaps in its target.

    They train nothing; reports count them.
    """
    return min(group.failed, max(0, group.target - group.valid))
