"""Work of a scheduler so far, for progress: what has ended, and how far the rest is by tokens."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

REPORT_S = 1.0
"""Seconds between two reports of work that is under way."""


@dataclass(frozen=True, slots=True)
class RolloutWork:
    """Trajectories and sampled tokens of a scheduler, from its beginning."""

    ended: int = 0
    ended_tokens: int = 0
    open: int = 0
    """Trajectories that go on, whose number of tokens nobody knows yet."""
    open_tokens: int = 0

    @property
    def tokens(self) -> int:
        """Return the sampled tokens of all of them."""
        return self.ended_tokens + self.open_tokens

    def count_since(self, before: "RolloutWork") -> float:
        """Return the trajectories done since `before`, those that go on in part.

        One that goes on is expected to sample as much more as those that have ended did on average,
        so it never counts as a whole one. Only what has ended counts until one has.
        """
        ended_count = self.ended - before.ended
        if not self.ended_tokens:
            return float(ended_count)
        mean_tokens = self.ended_tokens / self.ended
        return max(0.0, ended_count + self._share(mean_tokens) - before._share(mean_tokens))

    def _share(self, expected_tokens: float) -> float:
        total_tokens = self.open_tokens + self.open * expected_tokens
        return self.open * self.open_tokens / total_tokens if self.open_tokens else 0.0


@asynccontextmanager
async def reporting(report: Callable[[], None], every_s: float = REPORT_S) -> AsyncGenerator[None]:
    """Call `report` now and then while the block runs."""

    async def report_on() -> None:
        while True:
            await asyncio.sleep(every_s)
            report()

    task = asyncio.create_task(report_on(), name="agentrl-progress")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
