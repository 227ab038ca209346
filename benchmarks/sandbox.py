"""What a sandbox session costs: start, open, a cell, fork and close, beside a process per call.

- The latencies, each of one session at a time on an otherwise idle pool. `open` is measured with a
  session made ahead waiting, and without.
- Cells per second in 1, 8 and 32 sessions at once. The peer starts `python -I -S -c` for each call
  and isolates nothing. Ours includes the start of the pool and opening the sessions.
- Opening, using and closing a session: the CPU seconds of the whole process tree, which is what a
  rollout step of many short sessions waits for.
"""

import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial

from agentrl.sandbox import SandboxSettings
from agentrl_sandbox import ForkServerPool, Session
from benchmarks.harness import Benchmark, Contender, Run

CELL = "1 + 1"
SESSIONS = (1, 8, 32)
REFILL_S = 0.05
"""Long enough for a session to be made ahead."""

Latencies = dict[str, list[float]]
"""In seconds, by what was done."""


async def timed(seen: Latencies, what: str, doing: Awaitable[object]) -> None:
    """Await and take down how long it took."""
    start_s = time.perf_counter()
    await doing
    seen.setdefault(what, []).append(time.perf_counter() - start_s)


async def latencies(times: int) -> Latencies:
    """Return what one session at a time waits for."""
    seen: Latencies = {}
    for warm, name in ((0, "open, cold"), (2, "open, made ahead")):
        for _ in range(max(1, times // 20)):
            pool = ForkServerPool(SandboxSettings(), warm=warm)
            await timed(seen, "start and first open", pool.open())
            await one_by_one(seen, pool, name, min(times, 20))
            await pool.close()
    return seen


async def one_by_one(seen: Latencies, pool: ForkServerPool, name: str, times: int) -> None:
    """Open a session, run cells in it, fork it and close both, again and again."""
    for _ in range(times):
        await asyncio.sleep(REFILL_S)
        start_s = time.perf_counter()
        session = await pool.open()
        seen.setdefault(name, []).append(time.perf_counter() - start_s)
        await session.exec(CELL)  # the first cell of an interpreter copies pages
        for _ in range(5):
            await timed(seen, "cell", session.exec(CELL))
        start_s = time.perf_counter()
        copy = await session.fork()
        seen.setdefault("fork", []).append(time.perf_counter() - start_s)
        await timed(seen, "close", copy.close())
        await timed(seen, "close", session.close())


def cells(sessions: int, calls: int) -> Run:
    """Return a run of `calls` cells spread over `sessions` sessions; opening them counts too."""

    async def play() -> float:
        pool = ForkServerPool(SandboxSettings())
        opened = await asyncio.gather(*(pool.open() for _ in range(sessions)))
        await asyncio.gather(*(some_cells(session, calls // sessions) for session in opened))
        await pool.close()
        return float(calls // sessions * sessions)

    return partial(_run, play)


async def some_cells(session: Session, calls: int) -> None:
    """Run cells one after the other."""
    for _ in range(calls):
        await session.exec(CELL)


def processes(at_once: int, calls: int) -> Run:
    """Return a run of `calls` processes, `at_once` at a time."""
    command = (sys.executable, "-I", "-S", "-c", f"print({CELL})")

    async def some(count: int) -> None:
        for _ in range(count):
            process = await asyncio.create_subprocess_exec(
                *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
            )
            await process.communicate()

    async def play() -> float:
        await asyncio.gather(*(some(calls // at_once) for _ in range(at_once)))
        return float(calls // at_once * at_once)

    return partial(_run, play)


def short_sessions(count: int) -> Run:
    """Return a run of sessions that are opened, used for one cell and closed, 32 at a time."""

    async def play() -> float:
        pool = ForkServerPool(SandboxSettings())
        room = asyncio.Semaphore(32)

        async def one() -> None:
            async with room:
                session = await pool.open()
                await session.exec(CELL)
                await session.close()

        await asyncio.gather(*(one() for _ in range(count)))
        await pool.close()
        return float(count)

    return partial(_run, play)


def _run(play: Callable[[], Coroutine[None, None, float]]) -> float:
    return asyncio.run(play())


def state(bench: Benchmark, what: str, seen_s: list[float], goal_ms: float | None) -> None:
    """Add the rows of one latency: the goal is for the median."""
    p99_s = sorted(seen_s)[min(len(seen_s) - 1, int(0.99 * len(seen_s)))]
    median_ms = 1e3 * statistics.median(seen_s)
    bench.row(f"{what}, p50", median_ms, unit="ms", goal=goal_ms, better="lower")
    bench.row(f"{what}, p99", 1e3 * p99_s, unit="ms")


def main() -> None:
    """Measure, print and write."""
    bench = Benchmark.from_command_line("sandbox", __doc__)
    size = 1 if bench.quick else 10
    seen = asyncio.run(latencies(10 * size))
    goals = {"open, cold": 15, "open, made ahead": 2, "cell": 0.3, "fork": 2}
    for what, seen_s in seen.items():
        state(bench, what, seen_s, goals.get(what))
    contenders = {"short sessions": Contender(set_up=partial(short_sessions, 32 * size))}
    for at_once in SESSIONS:
        contenders[f"cells {at_once}"] = Contender(set_up=partial(cells, at_once, 320 * size))
        contenders[f"processes {at_once}"] = Contender(set_up=partial(processes, at_once, 4 * 32))
    runs = bench.compare(contenders)
    bench.cost("open, a cell and close", runs["short sessions"], unit="ms")
    bench.rate(
        "sessions opened, used and closed", runs["short sessions"], unit="sessions", by="wall"
    )
    for at_once in SESSIONS:
        ours, theirs = runs[f"cells {at_once}"], runs[f"processes {at_once}"]
        bench.rate(f"cells in {at_once} sessions", ours, unit="cells", by="wall")
        bench.ratio(
            f"cells/s in {at_once} sessions", ours, theirs, peer="a process per call", by="wall"
        )
    bench.finish()


if __name__ == "__main__":
    main()
