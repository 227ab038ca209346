"""Weights from the trainer to engines by broadcast, and what to do when an engine is lost over it.

Whatever arrives is a whole file in the memory of the engine's process before the engine loads it,
so that no request sees half of the weights.
"""

import asyncio
import secrets
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from ipaddress import ip_address
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from agentrl.engine.remote.client import LOOPBACK, RemoteEngine
from agentrl.engine.remote.shared_weights import SharedWeights, find_missing_base
from agentrl.errors import EngineError, EngineLost
from agentrl.runtime.threads import run_in_thread
from agentrl.weight_sync.buckets import SafetensorsBytes
from agentrl.weight_sync.transfer_group import (
    Backend,
    GroupRendezvous,
    WeightTransferGroup,
    store_at,
)

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

TRIES = 2
"""Number of tries with the same engines: a connection may break and nobody have died."""


class WeightBroadcaster:
    """Sends weights. Owned by the engines of a run; all calls belong to one event loop.

    All engines are given new weights at once, over `backend`, while the trainer waits. What one of
    them needs alone (a replacement, one that goes back) comes over Gloo from the copy in this
    machine's memory: the trainer may be at its next step, and its GPU is its own then.
    """

    def __init__(self, *, backend: Backend, bucket_bytes: int, deadline_s: float) -> None:
        self._backend: Backend = backend
        self._bucket_bytes = bucket_bytes
        self._deadline_s = deadline_s
        self._token = secrets.token_hex(8)
        self._generations = count(1)
        self._stores: dict[str, TCPStore] = {}
        self._kept: tuple[tuple[RemoteEngine, ...], WeightTransferGroup] | None = None
        self._arrived: dict[RemoteEngine, tuple[SharedWeights, str]] = {}
        self._turn = asyncio.Lock()
        self.groups = 0

    async def spread(
        self, weights: Mapping[str, Tensor], engines: Sequence[RemoteEngine]
    ) -> SharedWeights:
        """Send weights to all engines at once, and return a copy of them, made meanwhile.

        An engine that dies over it is left out, and the others are sent the weights again. Raises
        `EngineError` when they live and it fails nevertheless.
        """
        async with self._turn:
            copying = asyncio.create_task(run_in_thread(SharedWeights, weights))
            try:
                self._arrived.clear()
                row = await run_in_thread(SafetensorsBytes.from_weights, weights)
                reached, name = await self._send_to_living(
                    row, tuple(engines), self._backend, keeps=True
                )
                copy = await copying
            finally:
                copying.cancel()
            self._arrived = dict.fromkeys(reached, (copy, name))
            return copy

    async def load(self, engine: RemoteEngine, weights: Path | SharedWeights, version: int) -> None:
        """Have one engine take weights, which are sent unless they have arrived; a path is read by
        the engine. Raises as `RemoteEngine.load` does, `EngineLost` for one that dies over it."""
        if isinstance(weights, Path):
            await engine.load(weights, version)
            return
        arrived, name = self._arrived.pop(engine, (None, ""))
        if arrived is not weights:
            row = await run_in_thread(SafetensorsBytes.from_file, weights.path)
            _, name = await self._send_to_living(row, (engine,), "gloo", keeps=False)
        if (base := find_missing_base(weights, engine)) is not None:
            await engine.send_base(base.path, base.id)
        await engine.load_received(name, version)

    async def close(self) -> None:
        """Break up the groups, and let the stores go at which they were formed. Idempotent."""
        self._arrived.clear()
        self._forget()
        self._stores.clear()

    async def _send_to_living(
        self,
        row: SafetensorsBytes,
        engines: tuple[RemoteEngine, ...],
        backend: Backend,
        *,
        keeps: bool,
    ) -> tuple[tuple[RemoteEngine, ...], str]:
        """Send a row of bytes; return the engines that have it in the end, and the group's name."""
        tries = 0
        while engines:
            try:
                return engines, await self._send_once(row, engines, backend, keeps=keeps)
            except EngineError as error:
                lives = await asyncio.gather(*(_lives(engine) for engine in engines))
                survivors = tuple(e for e, is_alive in zip(engines, lives, strict=True) if is_alive)
                tries = 0 if len(survivors) < len(engines) else tries + 1
                if tries == TRIES:
                    raise
                if not survivors and not keeps:
                    raise EngineLost(str(error)) from error
                engines = survivors
        return (), ""

    async def _send_once(
        self,
        row: SafetensorsBytes,
        engines: tuple[RemoteEngine, ...],
        backend: Backend,
        *,
        keeps: bool,
    ) -> str:
        """Send to these engines, all or none, and return the name of the group."""
        group_entry = self._kept
        if keeps and group_entry is not None and group_entry[0] == engines:
            group, meetings = group_entry[1], _list_meetings(group_entry[1].meeting, engines)
        else:
            if keeps:
                self._forget()
            group, meetings = None, await self._meetings(engines, backend)
        stop = threading.Event()
        # Who forms a group cannot be stopped, so that nobody waits for the end of this thread.
        sending = asyncio.create_task(run_in_thread(self._send, row, meetings[0], group, stop))
        receiving = [
            asyncio.create_task(
                engine.receive(
                    meeting,
                    size_bytes=row.size_bytes,
                    bucket_bytes=self._bucket_bytes,
                    keeps=keeps,
                )
            )
            for engine, meeting in zip(engines, meetings[1:], strict=True)
        ]
        everybody = [sending, *receiving]
        try:
            ended, _ = await asyncio.wait(everybody, return_when=asyncio.FIRST_EXCEPTION)
            for task in ended:
                await task
        except BaseException:
            if group is not None:
                self._kept = None
            raise
        finally:
            # Whoever still waits for somebody who will not come is let go.
            stop.set()
            for task in everybody:
                task.cancel()
            await asyncio.wait(everybody)
            if not _have_succeeded(receiving) and _have_succeeded([sending]):
                sending.result().close()
        group = sending.result()
        if keeps:
            self._kept = engines, group
        else:
            group.close()
        return meetings[0].name

    def _send(
        self,
        row: SafetensorsBytes,
        meeting: GroupRendezvous,
        group: WeightTransferGroup | None,
        stop: threading.Event,
    ) -> WeightTransferGroup:
        if group is None:
            group = WeightTransferGroup.join(meeting, stop, self._stores[meeting.host])
            self.groups += 1
        try:
            group.send(row, bucket_bytes=self._bucket_bytes, stop=stop)
        except BaseException:
            group.close()
            raise
        if stop.is_set():
            group.close()
        return group

    async def _meetings(
        self, engines: tuple[RemoteEngine, ...], backend: Backend
    ) -> list[GroupRendezvous]:
        host = next((h for h in (e.ends[0] for e in engines) if not _is_loopback(h)), LOOPBACK)
        if host not in self._stores:
            self._stores[host] = await run_in_thread(store_at, host, deadline_s=self._deadline_s)
        first = GroupRendezvous(
            name=f"{self._token}/{next(self._generations)}",
            host=host,
            port=self._stores[host].port,
            rank=0,
            size=len(engines) + 1,
            address=host,
            backend=backend,
            deadline_s=self._deadline_s,
        )
        return _list_meetings(first, engines)

    def _forget(self) -> None:
        group_entry, self._kept = self._kept, None
        if group_entry is not None:
            group_entry[1].close()


def _list_meetings(
    first: GroupRendezvous, engines: Sequence[RemoteEngine]
) -> list[GroupRendezvous]:
    """Return the settings of every rank, given those of the first one."""
    there = (engine.ends[1] for engine in engines)
    # Who is reached over the loopback is on this machine.
    addresses = (first.address if _is_loopback(address) else address for address in there)
    others = (
        replace(first, rank=rank, address=address) for rank, address in enumerate(addresses, 1)
    )
    return [first, *others]


def _have_succeeded(tasks: Sequence[asyncio.Task[Any]]) -> bool:
    return all(not task.cancelled() and task.exception() is None for task in tasks)


def _is_loopback(address: str) -> bool:
    return ip_address(address.partition("%")[0]).is_loopback


async def _lives(engine: RemoteEngine) -> bool:
    try:
        await engine.ping()
    except EngineError:
        return False
    return True
