"""Activities of all trajectories, and those that are past their deadline."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

Phase = Literal["start", "reset", "generate", "step", "fork", "close", "gate", "segment"]
"""`gate` and `segment` wait for somebody else and are never overdue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotActivity:
    """Current activity of one trajectory."""

    task: str
    group: int
    sample: int
    phase: Phase
    since_s: float

    def describe(self, now_s: float) -> str:
        """Return it in words, with how long it has been going on."""
        return (
            f"trajectory {self.sample} of group {self.group} (task {self.task}): {self.phase} for "
            f"{now_s - self.since_s:.0f} s"
        )


def overdue(
    activities: Iterable[SlotActivity],
    *,
    now_s: float,
    deadlines_s: Mapping[Phase, float],
    grace_s: float,
) -> list[SlotActivity]:
    """Return the activities past their own deadline by more than `grace_s`, the longest first.

    A phase has its deadline where it happens; what is overdue here has not kept to it. A phase
    without one is never overdue.
    """
    late = [
        activity
        for activity in activities
        if activity.phase in deadlines_s
        and now_s - activity.since_s > deadlines_s[activity.phase] + grace_s
    ]
    return sorted(late, key=lambda activity: activity.since_s)


def name_all(activities: Iterable[SlotActivity], *, now_s: float, most: int = 5) -> str:
    """Return the longest activities in words, and how many more there are."""
    ordered = sorted(activities, key=lambda activity: activity.since_s)
    text = "; ".join(activity.describe(now_s) for activity in ordered[:most])
    more = len(ordered) - most
    return f"{text}; and {more} more" if more > 0 else text or "no trajectory is live"
