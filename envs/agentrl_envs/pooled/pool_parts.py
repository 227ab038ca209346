"""Parts of a pool: its background work, and its capacity for episodes."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from agentrl.errors import EnvError


class BackgroundTasks:
    """Tasks of one owner, none of which outlives it."""

    def __init__(self) -> None:
        self.closed = False
        """Whether only what ends things may still begin."""
        self._tasks: set[asyncio.Future[Any]] = set()

    def begin(self, work: Coroutine[Any, Any, None], *, ending: bool = False) -> None:
        """Do something in the background; after the end only what is `ending` something."""
        if self.closed and not ending:
            work.close()
            return
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def wait(self) -> None:
        """Wait until everything that was begun is done."""
        # From Python 3.12 on, `gather` on tasks that are all done does not yield, so that `discard`
        # would never run.
        while tasks := [*self._tasks]:
            await asyncio.wait(tasks)
            self._tasks.difference_update(tasks)

    async def cancel(self) -> None:
        """Leave off what is not done."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


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
