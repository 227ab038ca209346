"""Leftovers of agentrl processes that were killed, as `agentrl gc` shows them."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Literal, Protocol

ENTRY_POINTS = "agentrl.gc"
"""Entry-point group of `LeftoverCollector` functions, one for each package that makes resources."""

Outcome = Literal["found", "removed", "forgotten", "kept", "failed"]
"""`found`: would be removed. `forgotten`: its engine is gone. `kept`: nobody knows whose it is.
`failed`: it is still there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftoverResource:
    """One thing that is, or was, left."""

    kind: str
    name: str
    owner: str
    """The process that made it, in words."""
    outcome: Outcome
    detail: str = ""


class LeftoverCollector(Protocol):
    """Finds and removes leftovers of one kind of maker."""

    def __call__(
        self, *, dry_run: bool, unknown_too: bool, lost_engines: Collection[str]
    ) -> Iterable[LeftoverResource]:
        """Yield every leftover, having removed it, and never what a live process holds.

        With `dry_run` nothing is touched. With `unknown_too` also what no process can be found for
        is removed. What was left at `lost_engines`, named by their sockets, is forgotten.
        """
        ...


def collect(
    *, dry_run: bool, unknown_too: bool, lost_engines: Collection[str]
) -> Iterator[LeftoverResource]:
    """Yield what every installed collector finds."""
    for point in sorted(entry_points(group=ENTRY_POINTS)):
        collector: LeftoverCollector = point.load()
        yield from collector(dry_run=dry_run, unknown_too=unknown_too, lost_engines=lost_engines)
