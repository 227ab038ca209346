"""An environment whose world is in a worker. Its tasks and its gold player are here."""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

from agentrl.cluster.env_pool import EnvWorker, EnvWorkerPool, EnvWorkerSlot, WorkerDied
from agentrl.cluster.env_worker import Method, RemoteFailure
from agentrl.env import (
    Action,
    Env,
    ForkStrategy,
    GoldPlayer,
    Info,
    Observation,
    Step,
    looks_ahead,
)
from agentrl.errors import WorldLost
from agentrl.message import Message
from agentrl.task import Split, Task

CANCEL_S = 20.0
CLOSE_S = 1.0
"""Seconds for which a cancelled close is waited for: nobody asks that environment again."""


class RemoteEnv:
    """An environment like `local`, which is never reset: the world is in a worker of `fleet`.

    A worker that dies fails what it was doing (`WorldLost`); the next reset has another worker.
    """

    fork_strategy: ForkStrategy
    gold: Callable[[Task, Sequence[Message]], Action]
    """Only there when `local` has one."""

    def __init__(self, local: Env, fleet: EnvWorkerPool) -> None:
        self._local = local
        self._fleet = fleet
        self.fork_strategy = local.fork_strategy
        self.looks_ahead = looks_ahead(local)
        if isinstance(local, GoldPlayer):
            self.gold = local.gold
        self._berth: EnvWorkerSlot | None = None
        self._worker: EnvWorker | None = None
        self._number = 0

    def tasks(self, split: Split, *, seed: int = 0) -> Iterable[Task]:
        return self._local.tasks(split, seed=seed)

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        if self._worker is None:
            self._berth, self._worker, self._number = await self._fleet.take()
        return await self._ask("reset", seed, dict(options or {}))

    async def step(self, action: Action) -> Step:
        return await self._ask("step", action)

    async def fork(self) -> Self:
        """Return a copy of the world, in the same worker."""
        if self._berth is None:
            raise RuntimeError("no episode is running; await env.reset() first")
        other = type(self)(self._local, self._fleet)
        other._berth, other._worker = self._berth, self._worker
        other._number = self._fleet.another(self._berth)
        try:
            await self._ask("fork", other._number)
        except BaseException:
            await other.close()
            raise
        return other

    async def close(self) -> None:
        berth, self._berth = self._berth, None
        worker, self._worker = self._worker, None
        if berth is None or worker is None:
            return
        self._fleet.free(berth)
        try:
            answer = await worker.call(self._number, "close")
        except asyncio.CancelledError:
            await _stop_call(worker, self._number, within_s=CLOSE_S)
            raise
        except WorkerDied:
            self._fleet.replace(berth, worker)  # and the world with it
            return
        if isinstance(answer, RemoteFailure):
            raise answer.error()

    async def _ask(self, method: Method, *arguments: Any) -> Any:
        if self._worker is None or self._berth is None:
            raise RuntimeError("no episode is running; await env.reset() first")
        berth, worker, number = self._berth, self._worker, self._number
        try:
            answer = await worker.call(number, method, *arguments)
        except asyncio.CancelledError:
            await _stop_call(worker, number, within_s=CANCEL_S)
            raise
        except WorkerDied as error:
            self._fleet.replace(berth, worker)
            self._fleet.free(berth)
            self._berth = self._worker = None
            raise WorldLost(f"{method}: the worker died: {error}") from error
        if isinstance(answer, RemoteFailure):
            raise answer.error()
        return answer


async def _stop_call(worker: EnvWorker, number: int, *, within_s: float) -> None:
    """Cancel what an environment is doing in a worker, and wait for its end so long."""
    with contextlib.suppress(WorkerDied, TimeoutError):
        async with asyncio.timeout(within_s):
            await worker.cancel(number)
