"""What the groups of rows share: settings that do not hold anybody back, clocks, quantiles."""

import asyncio
import resource
import statistics
import time
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from agentrl.sandbox import Backend, Limits, Pressure, SandboxSettings
from agentrl_sandbox import ForkServerPool
from benchmarks.harness import Benchmark

CELL = "1 + 1"
_MEGABYTE = 2**20
Done = TypeVar("Done")


def settings(backend: Backend = "namespaces", *, memory_mb: int = 512) -> SandboxSettings:
    """Return settings under which nobody waits for anything but the machine."""
    return SandboxSettings(
        backend=backend,
        limits=Limits(memory_bytes=memory_mb * _MEGABYTE, cpu_s=600.0, wall_s=60.0),
        pressure=Pressure(sessions=4096, starts_per_s=100_000.0, start_burst=4096, cells=4096),
    )


@asynccontextmanager
async def opened(
    how: SandboxSettings | None = None, *, warm: int = 0
) -> AsyncGenerator[ForkServerPool]:
    """Yield a pool and close it."""
    pool = ForkServerPool(how or settings(), warm=warm)
    try:
        yield pool
    finally:
        await pool.close()


@dataclass(slots=True)
class Latencies:
    """How long each thing took, in seconds, by its name."""

    seen_s: dict[str, list[float]] = field(default_factory=dict[str, list[float]])

    async def timed(self, what: str, doing: Awaitable[Done]) -> Done:
        """Await and take down how long it took."""
        start_s = time.perf_counter()
        done = await doing
        self.seen_s.setdefault(what, []).append(time.perf_counter() - start_s)
        return done

    def state(
        self, bench: Benchmark, what: str, *, goal_ms: float | None = None, title: str = ""
    ) -> None:
        """Add the rows of one of them. The goal is for the median."""
        seen_ms = sorted(1e3 * one_s for one_s in self.seen_s[what])
        last = seen_ms[min(len(seen_ms) - 1, int(0.99 * len(seen_ms)))]
        title = title or what
        middle = statistics.median(seen_ms)
        bench.row(f"{title}, p50", middle, unit="ms", goal=goal_ms, better="lower")
        if len(seen_ms) >= 10:
            bench.row(f"{title}, p99", last, unit="ms")


def own_cpu_s() -> float:
    """Return the user and system seconds of this process alone."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def bounded(tasks: list[Awaitable[Done]], at_once: int) -> list[Done]:
    """Await all of them, some at a time."""
    room = asyncio.Semaphore(at_once)

    async def one(task: Awaitable[Done]) -> Done:
        async with room:
            return await task

    return await asyncio.gather(*map(one, tasks))
