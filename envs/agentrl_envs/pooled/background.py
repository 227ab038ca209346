"""Background work of a pool: clearing up, making things ready."""

import asyncio
from collections.abc import Coroutine
from typing import Any


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

    async def rest(self) -> None:
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
