"""Memory of sessions that are open and have run something, and how many fit.

PSS is summed over all processes below this one: a page that several share is counted once. It
leaves out what the kernel keeps of a process (page tables, namespaces, sockets); the memory that is
available on the machine shows that too, and whatever else the machine does meanwhile.
"""

import asyncio
import os
from contextlib import suppress
from pathlib import Path

from agentrl_sandbox import ForkServerPool, SandboxSession
from agentrl_sandbox.inside.processes import descendants
from benchmarks.harness import Benchmark
from benchmarks.sessions.stage import CELL, bounded, opened

SESSIONS, STEPS = 1_000, 5
FORKS = 100
_GIB = 2**30
_AT_ONCE = 16


def measure(bench: Benchmark) -> None:
    """Add the rows of memory, or say why there are none."""
    try:
        asyncio.run(_fresh(bench, 50 if bench.quick else SESSIONS))
        asyncio.run(_forked(bench, 20 if bench.quick else FORKS))
    except PermissionError as error:
        bench.notes.append(f"memory was not measured, which takes root: {error}")


async def _fresh(bench: Benchmark, count: int) -> None:
    async with opened() as pool:
        await (await _used(pool)).close()
        available = available_bytes()
        own = tree_pss_bytes(own=True)
        sizes = [(0, tree_pss_bytes())]
        live: list[SandboxSession] = []
        for _ in range(STEPS):
            live += await bounded([_used(pool) for _ in range(count // STEPS)], _AT_ONCE)
            sizes.append((len(live), tree_pss_bytes()))
        taken = available - available_bytes()
        own = tree_pss_bytes(own=True) - own - (sizes[-1][1] - sizes[0][1])
        results = await bounded([session.exec(CELL) for session in live], 64)
        assert all(result.value == "2" for result in results)
    base, slope = line(sizes)
    total = sizes[-1][1]
    bench.row("live sessions really opened", len(live), unit="sessions")
    bench.row("PSS per live session", slope / 1e6, unit="MB")
    bench.row("PSS of the supervisor and what all share", base / 1e6, unit="MB")
    bench.row("memory of this process per live session", own / len(live) / 1e6, unit="MB")
    bench.row("taken from the machine per live session", taken / len(live) / 1e6, unit="MB")
    for how, each in (
        ("by PSS", (total - base) / len(live)),
        ("by the machine", taken / len(live)),
    ):
        all_gib = (base + 1_000 * each) / _GIB
        bench.row(f"1,000 live sessions, {how}", all_gib, unit="GiB", goal=4, better="lower")
        fit = (8 * _GIB - base) / each
        bench.row(f"live sessions in 8 GiB, {how}", fit, unit="sessions")
    bench.notes.append(
        f"live sessions in 8 GiB: {len(live)} were really open at once; what lies beyond is "
        "extrapolated from the memory those took"
    )


async def _used(pool: ForkServerPool) -> SandboxSession:
    session = await pool.open()
    await session.exec(CELL)
    return session


async def _forked(bench: Benchmark, count: int) -> None:
    async with opened() as pool:
        session = await _used(pool)
        await session.exec("kept = bytearray(b'x') * (50 * 2**20)")
        before, available = tree_pss_bytes(), available_bytes()
        copies = [await session.fork() for _ in range(count)]
        for copy in copies:
            await copy.exec(CELL)
        each = (tree_pss_bytes() - before) / count
        taken = (available - available_bytes()) / count
    bench.row("PSS per fork of a session that holds 50 MB", each / 1e6, unit="MB")
    bench.row("taken from the machine per such fork", taken / 1e6, unit="MB")


def tree_pss_bytes(*, own: bool = False) -> int:
    """Return the PSS of everything below this process, with `own` of itself too.

    `PermissionError` when somebody there does not let us look, and we are not root.
    """
    total_kb = 0
    for pid in (*descendants(os.getpid()), *([os.getpid()] if own else [])):
        with suppress(FileNotFoundError, ProcessLookupError):
            for text in Path("/proc", str(pid), "smaps_rollup").read_text().splitlines():
                if text.startswith("Pss:"):
                    total_kb += int(text.split()[1])
    return total_kb * 1024


def available_bytes() -> int:
    """Return how much memory the machine could still give."""
    for text in Path("/proc/meminfo").read_text().splitlines():
        if text.startswith("MemAvailable:"):
            return int(text.split()[1]) * 1024
    raise OSError("/proc/meminfo has no line MemAvailable")


def line(points: list[tuple[int, int]]) -> tuple[float, float]:
    """Return height at zero and slope of the line nearest to the points."""
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    return mean_y - slope * mean_x, slope
