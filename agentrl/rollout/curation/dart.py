"""DART: fewer trajectories for tasks that are nearly solved, and a length cap of their own.

Source: arXiv 2509.23866 and its code. What the code lacks (the length cap) follows the paper.
"""

import math

from agentrl.rollout.curation.record import TaskStatistics

HAIR = 1e-9
"""Below the smallest step that matters; keeps 1.1 x 10 at 11 when it is rounded up."""


def rollouts(success_rate: float | None, *, base: int, threshold: float, minimum: int) -> int:
    """Return a task's number of trajectories: `base` below `threshold`, then fewer.

    Never more than `base`: with a threshold under 9 / (base + 7) the formula would ask for more.
    The paper's threshold is 0.6; the code's loader sets 1.0, which thins out solved tasks only.
    """
    if success_rate is None or success_rate < threshold or success_rate * (base + 7) <= 9:
        return base
    return min(base, max(minimum, math.floor(9 / success_rate - 7 + HAIR)))


def turns(longest_success: int, *, limit: int, slack: float) -> int:
    """Return a task's turn cap: its longest success times `slack`, the global one before any.

    `slack=1` is the paper's cap, which no later success can exceed.
    """
    if not longest_success:
        return limit
    return min(limit, math.ceil(slack * longest_success - HAIR))


def success_rate(record: TaskStatistics, *, window: int) -> float | None:
    """Return the mean score of a task's latest `window` trajectories; None without any."""
    latest = record.recent[-window:]
    return math.fsum(latest) / len(latest) if latest else None
