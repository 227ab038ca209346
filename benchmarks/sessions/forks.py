"""What a fork takes when the interpreter holds much: memory in one piece, and small objects."""

import asyncio

from agentrl_sandbox import SandboxSession
from benchmarks.harness import Benchmark
from benchmarks.sessions.stage import CELL, Latencies, opened, settings

SIZES_MB = (0, 50, 200)
GOAL_MS, GOAL_MS_PER_MB = 2.0, 0.02
_HEAPS = {
    "bytearray": "kept = bytearray(b'x') * ({mb} * 2**20)",
    # A tuple, its number and its place in the list take 88 bytes.
    "small objects": "kept = [(i,) for i in range({mb} * 2**20 // 88)]",
}


def measure(bench: Benchmark) -> None:
    """Add the rows of forks by size and kind of what is held."""
    times = 5 if bench.quick else 30
    for kind, code in _HEAPS.items():
        for mb in SIZES_MB:
            if mb == 0 and kind != "bytearray":
                continue
            seen = asyncio.run(_play(code.format(mb=mb), times))
            what = f"{mb} MB of {kind}" if mb else "an empty heap"
            goal_ms = GOAL_MS + GOAL_MS_PER_MB * mb
            seen.state(bench, "fork", title=f"fork with {what}", goal_ms=goal_ms)
            seen.state(bench, "first cell", title=f"first cell after a fork, {what}")


async def _play(code: str, times: int) -> Latencies:
    seen = Latencies()
    async with opened(settings(memory_mb=1024)) as pool:
        session = await pool.open()
        result = await session.exec(code)
        assert result.ok, result
        for number in range(times + 2):
            await _fork(seen if number >= 2 else Latencies(), session)
        await session.close()
    return seen


async def _fork(seen: Latencies, session: SandboxSession) -> None:
    await session.exec(CELL)  # as in a rollout: something ran since the last fork
    copy = await seen.timed("fork", session.fork())
    await seen.timed("first cell", copy.exec(CELL))
    await copy.close()
