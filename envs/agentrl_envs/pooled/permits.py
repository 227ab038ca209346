"""Capacity of a pool for episodes."""

import asyncio

from agentrl.errors import EnvError


class PoolPermits:
    """So many of something, each lent to one at a time."""

    def __init__(self, what: str, count: int, *, within_s: float) -> None:
        """Offer `count` places of what is called `what`; who waits longer than `within_s` fails."""
        self._what = what
        self._count = count
        self._within_s = within_s
        self._free = asyncio.Semaphore(count)

    async def take(self) -> None:
        """Wait for a place. Raises `EnvError` when none comes free in time."""
        try:
            async with asyncio.timeout(self._within_s):
                await self._free.acquire()
        except TimeoutError as error:
            raise EnvError(
                f"no {self._what} became available within {self._within_s:g} s: all {self._count} "
                "are in use"
            ) from error

    def give(self) -> None:
        """Return a place."""
        self._free.release()
