"""Cells per second in sessions that are open, beside tools that start a process per call."""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from agentrl.sandbox import Backend
from agentrl_sandbox import ForkServerPool, SandboxSession
from benchmarks.harness import Benchmark, Contender, Run
from benchmarks.measure import tree_cpu_s
from benchmarks.sessions.stage import CELL, own_cpu_s, settings

SESSIONS = (1, 8, 32, 64)
_GOALS = {1: 7_000.0, 32: 14_000.0}
_BARE = (sys.executable, "-I", "-S", "-c")
_WHOLE = (sys.executable, "-c")
"""As GEM's and SkyRL-Gym's Python tools call it: `subprocess.run` of a fresh interpreter with
`site`, all packages within reach and the whole environment, from a thread. Nothing is isolated and
no name lives on to the next call. What else those tools do for a call is left out here.
"""
PEER_BARE, PEER_WHOLE = "python -I -S -c", "python -c, as GEM and SkyRL-Gym"


@dataclass(slots=True)
class Cpu:
    """Seconds of processor per cell, by run: those of this process, those of the sandbox."""

    host_s: list[float] = field(default_factory=list[float])
    sandbox_s: list[float] = field(default_factory=list[float])


class Sessions:
    """Sessions that stay open between a contender's set-up and its run."""

    def __init__(self, count: int, calls: int, cpu: Cpu, backend: Backend = "namespaces") -> None:
        self._count = count
        self._calls = calls // count
        self._cpu = cpu
        self._backend: Backend = backend

    def set_up(self) -> Run:
        """Open everything and run some cells; what is returned runs the rest and closes."""
        runner = asyncio.Runner()
        pool, sessions = runner.run(self._open())

        def run() -> float:
            host_s, all_s = own_cpu_s(), tree_cpu_s()
            runner.run(_cells(sessions, self._calls))
            host_s, all_s = own_cpu_s() - host_s, tree_cpu_s() - all_s
            done = float(self._calls * self._count)
            self._cpu.host_s.append(host_s / done)
            self._cpu.sandbox_s.append((all_s - host_s) / done)
            close_later(runner, pool)
            return done

        return run

    async def _open(self) -> tuple[ForkServerPool, list[SandboxSession]]:
        pool = ForkServerPool(settings(self._backend), warm=0)
        sessions = await asyncio.gather(*(pool.open() for _ in range(self._count)))
        await _cells(sessions, max(5, 200 // self._count))
        return pool, list(sessions)


_later: list[Callable[[], None]] = []
"""What is to be closed when the clock does not run."""


def close_later(runner: asyncio.Runner, pool: ForkServerPool) -> None:
    """Have `tidy` close a pool and its loop."""

    def close() -> None:
        runner.run(pool.close())
        runner.close()

    _later.append(close)


def tidy() -> None:
    """Close what contenders left open."""
    while _later:
        _later.pop()()


def tidied(set_up: Callable[[], Run]) -> Run:
    """Set a contender up, once what the one before left open is closed."""
    tidy()
    return set_up()


async def _cells(sessions: list[SandboxSession] | tuple[SandboxSession, ...], calls: int) -> None:
    await asyncio.gather(*(_some(session, calls) for session in sessions))


async def _some(session: SandboxSession, calls: int) -> None:
    for _ in range(calls):
        result = await session.exec(CELL)
        assert result.value == "2"


def processes(command: tuple[str, ...], at_once: int, calls: int) -> Run:
    """Return a run of `calls` processes, one after the other in each of some threads."""

    def some() -> None:
        for _ in range(calls // at_once):
            done = subprocess.run(
                [*command, f"print({CELL})"],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
                stdin=subprocess.DEVNULL,
            )
            assert done.stdout == "2\n"

    def run() -> float:
        with ThreadPoolExecutor(at_once) as threads:
            for future in [threads.submit(some) for _ in range(at_once)]:
                future.result()
        return float(calls // at_once * at_once)

    return run


def measure(bench: Benchmark) -> None:
    """Add the rows of cells per second."""
    calls, fewer = (2_000, 32) if bench.quick else (20_000, 160)
    cpu = {count: Cpu() for count in SESSIONS}
    contenders: dict[str, Contender] = {}
    for count in SESSIONS:
        sessions = Sessions(count, calls, cpu[count])
        contenders[f"cells {count}"] = Contender(set_up=partial(tidied, sessions.set_up))
    for name, command in ((PEER_BARE, _BARE), (PEER_WHOLE, _WHOLE)):
        for at_once in (1, 8):
            make = partial(processes, command, at_once, fewer)
            contenders[f"{name} {at_once}"] = Contender(set_up=partial(tidied, make))
    runs = bench.compare(contenders)
    tidy()
    for count in SESSIONS:
        ours = runs[f"cells {count}"]
        where = f"{count} session{'s' * (count > 1)}"
        bench.rate(f"cells, {where}", ours, unit="cells", by="wall", goal=_GOALS.get(count))
        for who, used_s in (("host", cpu[count].host_s), ("sandbox", cpu[count].sandbox_s)):
            used_us = 1e6 * sorted(used_s)[len(used_s) // 2]
            bench.row(f"processor of the {who} per cell, {where}", used_us, unit="us")
    for count, at_once in ((1, 1), (32, 8)):
        ours = runs[f"cells {count}"]
        for name, goal in ((PEER_BARE, None), (PEER_WHOLE, 100.0)):
            theirs = runs[f"{name} {at_once}"]
            bench.rate(f"calls, {name}, {at_once} at once", theirs, unit="calls", by="wall")
            bench.ratio(
                f"cells/s in {count} to calls/s, {at_once} at once: {name}",
                ours,
                theirs,
                peer=name,
                by="wall",
                goal=goal,
            )
