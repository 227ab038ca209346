"""Admission: what a pool may ask of the machine at once, and who waits for what.

    open ──► a place ──► memory, and a token of the bucket ──► start
    fork ──► a place ──► memory ──► copy
    cell ──► a free slot ──► run

| waits for | is let on by | or ends with |
| --- | --- | --- |
| a place | a session or fork that is closed | `SandboxError` after `wait_s` |
| memory | the machine, looked at every `READ_EVERY_S` | the same |
| a token | time | the same |
| a slot | a cell or command that ends: each has a deadline | the same |

Every line is first come, first served, and a place is taken before anything else, so a late token
never holds up more than its own place. Forks wait like everybody else, and no longer: those who
hold sessions and all wait for copies would wait for each other, which `wait_s` ends by an error
that names the setting. Whoever gets it closes what it holds, and the others go on.
"""

import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import fields

from agentrl.errors import ConfigError, SandboxError
from agentrl.sandbox import Pressure
from agentrl_sandbox.admission_queue import NEVER_BY_ITSELF, AdmissionQueue
from agentrl_sandbox.cgroup import available_bytes
from agentrl_sandbox.pressure import READ_EVERY_S, MemoryReading, MemoryValve, TokenBucket

Clock = Callable[[], float]
MACHINE = MemoryReading(available_bytes)
"""One for all pools of this process: they share the machine."""
_MEBIBYTE = 2**20


class PoolAdmission:
    """Admission to one pool, within its `Pressure`. For one event loop.

    `ConfigError` for settings under which nothing could ever start.
    """

    def __init__(
        self, pressure: Pressure, *, memory: MemoryReading = MACHINE, clock: Clock = time.monotonic
    ) -> None:
        check_pressure(pressure)
        self._pressure = pressure
        self._memory = memory
        self._clock = clock
        self._bucket = TokenBucket(per_s=pressure.starts_per_s, burst=pressure.start_burst)
        self._valve = MemoryValve(pressure.free_memory_bytes)
        self._live = self._running = self._waits = 0
        self._waited_s = self._longest_s = 0.0
        self._closed = ""
        self._within = f"within sandbox.pressure.wait_s={pressure.wait_s:g}"
        self._places = AdmissionQueue(self._take_place, self._leave_place, self._explain_no_place)
        self._starts = AdmissionQueue(
            self._take_start, self._bucket.give_back, self._explain_no_start
        )
        self._copies = AdmissionQueue(self._take_memory, lambda: None, self._explain_no_start)
        self._slots = AdmissionQueue(self._take_slot, self._end_cell, self._explain_no_slot)

    @asynccontextmanager
    async def cell(self) -> AsyncGenerator[None]:
        """Hold a slot for one cell or command; `SandboxError` when it waits too long."""
        if not self._slots.try_pass():
            await self._wait(self._slots)
        try:
            yield
        finally:
            self._end_cell()

    async def session(self) -> ExitStack:
        """Return the right to open a session now, to be closed; `SandboxError` after `wait_s`."""
        return await self._enter(self._starts)

    async def fork(self) -> ExitStack:
        """Return the right to copy a session now, to be closed; `SandboxError` after `wait_s`."""
        return await self._enter(self._copies)

    def close(self, why: str) -> None:
        """Turn everybody away who waits, and whoever comes later. Idempotent."""
        self._closed = why
        for turnstile in (self._places, self._starts, self._copies, self._slots):
            turnstile.close(why)

    def figures(self) -> Mapping[str, float]:
        """Return the load of the pool now, and the waiting times since it exists."""
        return {
            "live": self._live,
            "running": self._running,
            "waiting": self._places.waiting + self._starts.waiting + self._copies.waiting,
            "waiting_cells": self._slots.waiting,
            "waits": self._waits,
            "waited_s": self._waited_s,
            "longest_wait_s": self._longest_s,
            "short_of_memory": float(self._valve.shut),
        }

    async def _wait(self, turnstile: AdmissionQueue, since_s: float | None = None) -> None:
        """Wait in one line, at most until `wait_s` after `since_s`."""
        if self._closed:
            raise SandboxError(self._closed)
        began_s = self._clock()
        elapsed_s = 0.0 if since_s is None else began_s - since_s
        try:
            await turnstile.wait(max(0.0, self._pressure.wait_s - elapsed_s))
        finally:
            waited_s = self._clock() - began_s
            self._waits += 1
            self._waited_s += waited_s
            self._longest_s = max(self._longest_s, waited_s)

    def _end_cell(self) -> None:
        self._running -= 1
        if self._slots.waiting:
            self._slots.pump()

    async def _enter(self, stage: AdmissionQueue) -> ExitStack:
        since_s = self._clock()
        if not self._places.try_pass():
            await self._wait(self._places, since_s)
        try:
            if not stage.try_pass():
                await self._wait(stage, since_s)
        except BaseException:
            self._leave_place()
            raise
        permit = ExitStack()
        permit.callback(self._leave_place)
        return permit

    # -- rules: 0 and taken, or the seconds after which to ask again -------------------------------

    def _take_place(self) -> float:
        if self._closed or self._live >= self._pressure.sessions:
            return NEVER_BY_ITSELF
        self._live += 1
        return 0.0

    def _leave_place(self) -> None:
        self._live -= 1
        self._places.pump()

    def _take_slot(self) -> float:
        if self._closed or self._running >= self._pressure.cells:
            return NEVER_BY_ITSELF
        self._running += 1
        return 0.0

    def _take_memory(self) -> float:
        if not self._valve.is_open(self._memory.available_bytes(self._clock())):
            return READ_EVERY_S
        self._memory.take()
        return 0.0

    def _take_start(self) -> float:
        now_s = self._clock()
        if (wait_s := self._bucket.wait_s(now_s)) > 0:
            return wait_s
        if (wait_s := self._take_memory()) > 0:
            return wait_s
        self._bucket.take(now_s)
        return 0.0

    # -- why somebody waited in vain --------------------------------------------------------------

    def _explain_no_place(self) -> str:
        limit = self._pressure.sessions
        return (
            f"no place for another sandbox session {self._within}: {self._live} of {limit} "
            f"sessions are live and {self._places.waiting} more are waiting; close sessions and "
            "forks that are no longer needed, run fewer at once, or raise "
            "sandbox.pressure.sessions"
        )

    def _explain_no_start(self) -> str:
        if self._valve.shut:
            free_bytes = self._pressure.free_memory_bytes
            now_bytes = self._memory.available_bytes(self._clock())
            return (
                f"no memory for another sandbox session {self._within}: "
                f"{now_bytes // _MEBIBYTE} MiB are available, but {free_bytes // _MEBIBYTE} MiB "
                "must stay free; run fewer sessions at once, or lower "
                f"sandbox.pressure.free_memory_bytes={free_bytes}"
            )
        return (
            f"no permission to start a sandbox session {self._within}: {self._starts.waiting} more "
            f"are waiting; raise sandbox.pressure.starts_per_s={self._pressure.starts_per_s:g}"
        )

    def _explain_no_slot(self) -> str:
        return (
            f"no slot for another cell {self._within}: {self._running} cells are running and "
            f"{self._slots.waiting} more are waiting; raise "
            f"sandbox.pressure.cells={self._pressure.cells}, or run fewer at once"
        )


def check_pressure(pressure: Pressure) -> None:
    """Raise `ConfigError` for settings under which nothing could ever start."""
    for field in fields(pressure):
        number = getattr(pressure, field.name)
        least = 0 if field.name in ("free_memory_bytes", "wait_s") else 1
        if not number > 0 if field.name == "starts_per_s" else number < least:
            raise ConfigError(
                f"sandbox.pressure.{field.name} is {number}, so nothing could ever start; it must "
                f"be {'above 0' if field.name == 'starts_per_s' else f'at least {least}'}"
            )
