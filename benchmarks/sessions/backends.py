"""Back-ends that isolate with namespaces side by side: those we make, and bubblewrap's."""

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from functools import partial

from agentrl.sandbox import Backend
from agentrl_sandbox import ForkServerPool
from benchmarks.harness import Benchmark, Contender, Run
from benchmarks.sessions.rates import Cpu, Sessions, tidied, tidy
from benchmarks.sessions.stage import CELL, opened, settings

OURS: Backend = "namespaces"
PEER: Backend = "bubblewrap"


def measure(bench: Benchmark) -> None:
    """Add a ratio for pools, sessions, forks and cells: how many times the peer's rate ours is."""
    if shutil.which("bwrap") is None:
        bench.notes.append("no back-ends were compared: apt-get install bubblewrap")
        return
    few = 5 if bench.quick else 20
    kinds: dict[str, Callable[[Backend], Run]] = {
        "starts of a pool with a session": partial(_starts, few),
        "sessions opened, used and closed": partial(_in_a_pool, _sessions, 20 * few),
        "forks, used and closed": partial(_in_a_pool, _forks, 20 * few),
        "cells in 8 sessions": lambda backend: Sessions(8, 400 * few, Cpu(), backend).set_up(),
    }
    for kind, set_up in kinds.items():
        contenders = {
            f"{kind}, {backend}": Contender(set_up=partial(tidied, partial(set_up, backend)))
            for backend in (OURS, PEER)
        }
        ours, theirs = bench.compare(contenders).values()
        tidy()
        bench.ratio(f"{kind}: {OURS} to {PEER}", ours, theirs, peer=PEER)


def _starts(times: int, backend: Backend) -> Run:
    async def play() -> None:
        for _ in range(times):
            async with opened(settings(backend)) as pool:
                session = await pool.open()
                await session.exec(CELL)

    def run() -> float:
        asyncio.run(play())
        return float(times)

    return run


def _in_a_pool(
    play: Callable[[ForkServerPool, int], Awaitable[None]], times: int, backend: Backend
) -> Run:
    async def all_of_it() -> None:
        async with opened(settings(backend)) as pool:
            await play(pool, times)

    def run() -> float:
        asyncio.run(all_of_it())
        return float(times)

    return run


async def _sessions(pool: ForkServerPool, times: int) -> None:
    for _ in range(times):
        session = await pool.open()
        await session.exec(CELL)
        await session.close()


async def _forks(pool: ForkServerPool, times: int) -> None:
    session = await pool.open()
    await session.exec(CELL)
    for _ in range(times):
        copy = await session.fork()
        await copy.exec(CELL)
        await copy.close()
