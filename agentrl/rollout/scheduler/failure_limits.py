"""Failure rates over the latest attempts, and which of them stop the run."""

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from agentrl.errors import FailureKind
from agentrl.rollout.scheduler.topology import TooManyFailures, exceeds_share, is_stale
from agentrl.trajectory import Failed, Outcome

NO_THRESHOLDS: Mapping[FailureKind, float] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRateLimits:
    """The bounds. Retried attempts count: a failure that a retry hides is one all the same."""

    window: int = 500
    """Latest attempts that the rates are taken over."""
    min_count: int = 50
    """Attempts before anything is judged."""
    thresholds: Mapping[FailureKind, float] = field(default_factory=lambda: NO_THRESHOLDS)
    """Highest tolerated share of attempts per kind of failure; a kind without one is not judged."""

    def __post_init__(self) -> None:
        if not 1 <= self.min_count <= self.window:
            raise ValueError(
                f"rollout.alarms.min_count must be within [1, window={self.window}], got "
                f"{self.min_count}"
            )
        for kind, share in self.thresholds.items():
            if not 0 <= share <= 1:
                raise ValueError(f"rollout.alarms.{kind} must be within [0, 1], got {share}")


class RateAlarm(TooManyFailures):
    """Failures of one kind are more frequent than the run tolerates; the run stops."""


def find_exceeded(
    failures: Mapping[FailureKind, int], attempts: int, alarms: FailureRateLimits
) -> FailureKind | None:
    """Return the kind whose share of the attempts is above its bound, the worst first."""
    if attempts < alarms.min_count:
        return None
    excess: dict[FailureKind, float] = {
        kind: failures.get(kind, 0) / attempts - bound
        for kind, bound in alarms.thresholds.items()
        if exceeds_share(failures.get(kind, 0), bound, total=attempts)
    }
    return max(excess, key=lambda kind: excess[kind]) if excess else None


class OutcomeRates:
    """The latest outcomes. Each `add` costs the same however wide the window is."""

    def __init__(self, alarms: FailureRateLimits) -> None:
        self._alarms = alarms
        self._latest: deque[FailureKind | None] = deque()
        self._failures: Counter[FailureKind] = Counter()

    def add(self, outcome: Outcome) -> None:
        """Count an attempt. Raises `RateAlarm` when a rate is above its threshold.

        One that became too old to train is no attempt at anything.
        """
        if is_stale(outcome):
            return
        kind = outcome.kind if isinstance(outcome, Failed) else None
        self._latest.append(kind)
        if kind is not None:
            self._failures[kind] += 1
        if len(self._latest) > self._alarms.window:
            oldest = self._latest.popleft()
            if oldest is not None:
                self._failures[oldest] -= 1
        if (worst := find_exceeded(self._failures, len(self._latest), self._alarms)) is not None:
            raise RateAlarm(self._describe_alarm(worst, outcome))

    @property
    def saved(self) -> list[FailureKind | None]:
        """Return the latest outcomes, the oldest first, for `recall`."""
        return list(self._latest)

    def recall(self, outcomes: Iterable[FailureKind | None]) -> None:
        """Take outcomes of before a resume: the failures' kinds, None for the others.

        If they are beyond a threshold, they have stopped the run, and whoever resumed it has mended
        the cause: then none of them counts any more.
        """
        self._latest += outcomes
        while len(self._latest) > self._alarms.window:
            self._latest.popleft()
        self._failures = Counter(kind for kind in self._latest if kind is not None)
        if find_exceeded(self._failures, len(self._latest), self._alarms) is not None:
            self._latest.clear()
            self._failures.clear()

    def rates(self) -> dict[str, float]:
        """Return the share of each kind of failure that occurred."""
        return {
            kind: count / len(self._latest)
            for kind, count in sorted(self._failures.items())
            if count
        }

    def _describe_alarm(self, kind: FailureKind, outcome: Outcome) -> str:
        count, attempts = self._failures[kind], len(self._latest)
        last = f"; the latest one: {outcome.error}" if isinstance(outcome, Failed) else ""
        return (
            f"{count} of the latest {attempts} attempts ({count / attempts:.1%}) failed with "
            f"{kind!r}, but rollout.alarms.{kind} tolerates "
            f"{self._alarms.thresholds[kind]:.1%}{last}; fix the cause, or raise that threshold"
        )
