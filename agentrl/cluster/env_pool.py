"""Workers as their caller sees them: who has least gets the next, who dies is replaced."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol, Self

from agentrl.cluster.env_worker import Method
from agentrl.errors import EnvError, first_error


class WorkerDied(Exception):
    """The worker is gone, with the environments it held."""


class EnvWorker(Protocol):
    """One worker. What it is asked raises `WorkerDied` when it is gone."""

    async def call(self, number: int, method: Method, *arguments: Any) -> Any:
        """Return the result of `EnvWorkerHost.call` there."""
        ...

    async def cancel(self, number: int) -> None:
        """Stop what an environment is doing there."""
        ...

    async def close(self) -> None:
        """Close its environments and end it. Idempotent."""
        ...


Start = Callable[[], Awaitable[EnvWorker]]


@dataclass(slots=True, eq=False)
class EnvWorkerSlot:
    """A worker's place in the fleet, and how many environments it has."""

    worker: EnvWorker | None = None
    """None while a dead one is being replaced."""
    held: int = 0
    replacing: "asyncio.Task[None] | None" = field(default=None, repr=False)


class EnvWorkerPool:
    """So many workers. `open` starts them, `close` ends them."""

    def __init__(self, start: Start, *, workers: int, max_restarts: int, start_s: float) -> None:
        self._start = start
        self._start_s = start_s
        self._left = max_restarts
        self._berths = [EnvWorkerSlot() for _ in range(workers)]
        self._numbers = count(1)
        self._broken = ""
        self._changed = asyncio.Event()
        self._ending: set[asyncio.Task[None]] = set()
        """Those of dead workers."""
        self.restarts = 0
        """How many workers have been replaced."""

    async def open(self) -> Self:
        """Start all workers, one that dies meanwhile once more; raises what their start raises,
        and `TimeoutError`."""
        try:
            with first_error():
                async with asyncio.timeout(self._start_s), asyncio.TaskGroup() as group:
                    for berth in self._berths:
                        group.create_task(self._begin(berth))
        except BaseException:
            await self.close()
            raise
        return self

    async def take(self) -> tuple[EnvWorkerSlot, EnvWorker, int]:
        """Return a worker for a new environment, and its number; `free` gives the place back.

        Waits for a replacement where all are dead; `EnvError` when there will be none.
        """
        try:
            async with asyncio.timeout(self._start_s):
                while True:
                    if self._broken:
                        raise EnvError(self._broken)
                    alive = [berth for berth in self._berths if berth.worker is not None]
                    if alive:
                        berth = min(alive, key=lambda one: one.held)
                        assert berth.worker is not None
                        berth.held += 1
                        return berth, berth.worker, next(self._numbers)
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError as error:
            raise EnvError(f"no environment worker started within {self._start_s:g} s") from error

    def another(self, berth: EnvWorkerSlot) -> int:
        """Return the number of one more environment of a worker's, for a fork."""
        berth.held += 1
        return next(self._numbers)

    def free(self, berth: EnvWorkerSlot) -> None:
        """Note that a worker has one environment less."""
        berth.held -= 1

    def replace(self, berth: EnvWorkerSlot, worker: EnvWorker) -> None:
        """Have a dead worker replaced; nothing when it has been already."""
        if berth.worker is not worker:
            return
        berth.worker = None
        # Perhaps it is only out of reach, and would keep its room.
        ending = asyncio.create_task(worker.close(), name="agentrl-worker-end")
        self._ending.add(ending)
        ending.add_done_callback(self._forget_ending)
        if self._left == 0:
            self._broken = self._broken or (
                "an environment worker died, and cluster.max_restarts is used up; see its log for "
                "the cause"
            )
            self._changed.set()
            return
        self._count()
        berth.replacing = asyncio.create_task(self._replace(berth), name="agentrl-worker-replace")

    async def close(self) -> None:
        """End all workers. Idempotent."""
        self._broken = self._broken or "the environment workers are closed"
        self._changed.set()
        replacing = [berth.replacing for berth in self._berths if berth.replacing is not None]
        for task in replacing:
            task.cancel()
        await asyncio.gather(*replacing, return_exceptions=True)
        workers = [berth.worker for berth in self._berths if berth.worker is not None]
        for berth in self._berths:
            berth.worker = berth.replacing = None
        ending = [worker.close() for worker in workers]
        await asyncio.gather(*ending, *self._ending, return_exceptions=True)

    def _forget_ending(self, ending: "asyncio.Task[None]") -> None:
        self._ending.discard(ending)
        if not ending.cancelled():
            ending.exception()  # of one that is gone already there is nobody to tell

    async def _begin(self, berth: EnvWorkerSlot) -> None:
        """Fill a berth for the first time: two deaths in a row are no accident then."""
        if not await self._try_fill(berth):
            self._count()
            await self._fill(berth)

    def _count(self) -> None:
        self._left -= 1
        self.restarts += 1

    async def _fill(self, berth: EnvWorkerSlot) -> None:
        berth.worker = await self._start()
        self._changed.set()

    async def _try_fill(self, berth: EnvWorkerSlot) -> bool:
        """Fill a berth; False when the worker died while it started and another one may."""
        try:
            await self._fill(berth)
        except WorkerDied:
            if self._left == 0:
                raise
            return False
        return True

    async def _replace(self, berth: EnvWorkerSlot) -> None:
        try:
            while not await self._try_replace(berth):
                pass
        except Exception as error:  # noqa: BLE001 - told to whoever asks next
            self._broken = f"an environment worker died and could not be replaced: {error}"
            self._changed.set()

    async def _try_replace(self, berth: EnvWorkerSlot) -> bool:
        """Have a worker in a berth; False when there is no room for it yet, and others go on."""
        try:
            async with asyncio.timeout(self._start_s):
                while not await self._try_fill(berth):
                    self._count()
        except TimeoutError:
            if not any(one.worker is not None for one in self._berths):
                raise
            return False
        return True
