"""One session at a time on an otherwise idle pool: what somebody waits for."""

import asyncio

from agentrl.sandbox import Backend
from agentrl_sandbox import ForkServerPool
from benchmarks.harness import Benchmark
from benchmarks.sessions.stage import CELL, Latencies, opened, settings

REFILL_S = 0.05
"""Long enough for a session to be made ahead."""
_GOALS_MS = {"open, cold": 15.0, "open, made ahead": 2.0}
_KINDS = (
    *("start of a pool and first open", "open, cold", "open, made ahead"),
    *("first cell", "cell", "command", "fork", "close"),
)


def measure(bench: Benchmark, backend: Backend = "namespaces") -> None:
    """Add the rows of start, open, cell, fork and close."""
    times = 20 if bench.quick else 200
    if backend == "docker":
        times //= 4
    seen = asyncio.run(_play(times, backend))
    before = "" if backend == "namespaces" else f"{backend}: "
    for what in _KINDS:
        seen.state(bench, what, goal_ms=_GOALS_MS.get(what), title=f"{before}{what}")


async def _play(times: int, backend: Backend) -> Latencies:
    seen = Latencies()
    pools = 5
    for _ in range(pools):
        for warm, what in ((0, "open, cold"), (2, "open, made ahead")):
            async with opened(settings(backend), warm=warm) as pool:
                first = await seen.timed("start of a pool and first open", pool.open())
                await _one_by_one(seen, pool, what, times // pools)
                await first.close()
    return seen


async def _one_by_one(seen: Latencies, pool: ForkServerPool, how: str, times: int) -> None:
    """Open a session, use it, fork it and close both, again and again."""
    for _ in range(times):
        await asyncio.sleep(REFILL_S)
        session = await seen.timed(how, pool.open())
        await seen.timed("first cell", session.exec(CELL))
        for _ in range(5):
            await seen.timed("cell", session.exec(CELL))
        await seen.timed("command", session.run(["true"]))
        copy = await seen.timed("fork", session.fork())
        await copy.exec(CELL)
        await seen.timed("close", copy.close())
        await seen.timed("close", session.close())
