"""Progress reports of a long run. The command line draws bars; tests stay silent."""

from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

NOTHING: Mapping[str, float] = {}


class ProgressPhase(Protocol):
    """One stretch of work with a known length."""

    def advance(self, amount: int = 1, figures: Mapping[str, float] = NOTHING) -> None:
        """Report that `amount` more is done, and the latest figures to show beside it."""
        ...

    def update(self, begun: float, figures: Mapping[str, float] = NOTHING) -> None:
        """Report that `begun` units are done in parts; an advance takes its amount from that."""
        ...


class RunProgress(Protocol):
    """Follows a run phase by phase."""

    def phase(
        self, name: str, *, total: int, done: int = 0
    ) -> AbstractContextManager[ProgressPhase]:
        """Enter a phase, of which `done` is done already; leaving the block ends it."""
        ...

    def say(self, text: str) -> None:
        """Show a line that stays."""
        ...


class _QuietPhase:
    def advance(self, amount: int = 1, figures: Mapping[str, float] = NOTHING) -> None:
        """Drop the figures."""

    def update(self, begun: float, figures: Mapping[str, float] = NOTHING) -> None:
        """Drop the figures."""


class SilentProgress:
    """Shows nothing."""

    @contextmanager
    def phase(self, name: str, *, total: int, done: int = 0) -> Generator[ProgressPhase]:
        yield _QuietPhase()

    def say(self, text: str) -> None:
        """Drop the line."""
