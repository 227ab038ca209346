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
    open_tokens: int = 0
    """Tokens of the trajectories that go on, whose number nobody needs to know."""

    @property
    def tokens(self) -> int:
        """Return the sampled tokens of all of them."""
        return self.ended_tokens + self.open_tokens

    def count_since(self, before: "RolloutWork") -> float:
        """Return the trajectories done since `before`; one that goes on counts with the share that
        its tokens are of a mean trajectory. Only what has ended counts until one has."""
        ended_count = self.ended - before.ended
        if not self.ended_tokens:
            return float(ended_count)
        mean_tokens = self.ended_tokens / self.ended
        return max(0.0, ended_count + (self.open_tokens - before.open_tokens) / mean_tokens)


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
