"""Surroundings of one check: its device, its folder, its time, and the figures it has found."""

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from agentrl.errors import AgentrlError
from agentrl.selfcheck.report import FigureValue


class CheckFailed(AgentrlError):
    """A check found something wrong. The text says what was measured, and what was allowed."""


class CheckSkipped(AgentrlError):
    """A check needs a part that is not here. The text names it."""


def host_peak_mib() -> float:
    """Return the most memory that this process has had, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@dataclass(slots=True)
class CheckContext:
    """Arguments of a check. Figures count from when they are recorded, however the check ends."""

    device: str
    """`cpu`, or `cuda` for the first visible GPU."""
    folder: Path
    """An empty folder, removed when the check has ended."""
    limit_s: float
    """Seconds until the check is ended from outside."""
    send: Callable[[str, FigureValue], None]
    faults: list[str] = field(default_factory=list[str])
    _start_s: float = field(default_factory=time.monotonic)

    @property
    def left_s(self) -> float:
        """Return the seconds that are left."""
        return self.limit_s - (time.monotonic() - self._start_s)

    def record(self, name: str, value: FigureValue) -> None:
        """Record a figure."""
        self.send(name, value)

    def expect(self, name: str, value: float, *, at_most: float) -> None:
        """Record a figure, and a fault where it is above a limit or no number.

        A check goes on after it, so that one report has all of its faults; see `conclude`.
        """
        self.record(name, value)
        if not value <= at_most:
            self.faults.append(f"{name} is {value:.3g}, and at most {at_most:g} is allowed")

    def conclude(self) -> None:
        """Raise `CheckFailed` with all faults so far, if there are any."""
        if self.faults:
            raise CheckFailed("; ".join(self.faults))
