"""Where players play: a pool, its settings, and a book of what was done in it."""

import math
import os
import signal
from collections import Counter
from dataclasses import dataclass, field

from agentrl.sandbox import AfterTimeout
from agentrl_sandbox import ForkServerPool
from benchmarks.soaking import saboteur

_BINS_PER_DOUBLING = 4


@dataclass(slots=True)
class Book:
    """How often each thing was done and how long it took, in memory that does not grow."""

    counts: Counter[tuple[str, int]] = field(default_factory=Counter[tuple[str, int]])
    """By what was done and the bin of its duration."""
    statuses: Counter[str] = field(default_factory=Counter[str])

    def took(self, what: str, seconds: float) -> None:
        """Take down one duration."""
        number = round(_BINS_PER_DOUBLING * math.log2(max(seconds, 1e-6) / 1e-6))
        self.counts[what, number] += 1

    def kinds(self) -> list[str]:
        """Return what was done, by name."""
        return sorted({what for what, _ in self.counts})

    def count(self, what: str) -> int:
        """Return how often it was done."""
        return sum(n for (name, _), n in self.counts.items() if name == what)

    def quantile_s(self, what: str, part: float) -> float:
        """Return the duration below which this part of them was, to a fifth of itself."""
        bins = sorted((number, n) for (name, number), n in self.counts.items() if name == what)
        rank, seen = part * sum(n for _, n in bins), 0
        for number, n in bins:
            seen += n
            if seen >= rank:
                return 1e-6 * 2 ** (number / _BINS_PER_DOUBLING)
        raise ValueError(f"{what!r} was never done")


@dataclass(slots=True)
class Ground:
    """A pool, and what happened to it."""

    pool: ForkServerPool
    mode: AfterTimeout
    isolated: bool
    book: Book
    disasters: int = 0
    """How often its supervisor was killed."""

    def kill_supervisor_of(self, keeper: int) -> None:
        """Kill the supervisor that started a keeper, and with it the sessions of everybody here."""
        supervisor = saboteur.parent(keeper)
        if supervisor > 1 and saboteur.runs_agentrl(supervisor):
            self.disasters += 1
            os.kill(supervisor, signal.SIGKILL)
