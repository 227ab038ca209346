"""Sandboxes beside the least that the machine takes for the like.

| ours | the least |
| --- | --- |
| a cell | a message of its length through a pipe to another process, and one back |
| a fork of 50 MB, closed | `os.fork` of an interpreter that holds the same, and its end |
| a session, opened and closed | `unshare` of six namespaces, and a static program in them |

Contenders take turns; a ratio is of processor time of all processes, in one round. The peers
isolate less or nothing: no filter of system calls, no root of their own, no files, no quota. A
pause precedes each cell and each message, for an agent's cells come seldom: two processes that only
answer each other keep a processor and its caches to themselves.
"""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from functools import partial
from shutil import which
from typing import Any

from agentrl_sandbox import ForkServerPool, SandboxSession
from benchmarks.harness import Benchmark, Contender, Run
from benchmarks.sessions.rates import close_later, tidied, tidy
from benchmarks.sessions.stage import CELL, settings

HELD = "kept = [(i,) for i in range(50 * 2**20 // 88)]"
"""Code that makes 50 MB of small objects."""
PAUSE_S = 0.001
"""Before each cell, and before each message through a pipe."""
_QUESTION, _ANSWER = b"q" * 64, b"a" * 128
_Timed = Callable[[int], Run]
_Play = Callable[[ForkServerPool, SandboxSession, int], Coroutine[Any, Any, None]]
_LEAST_SESSION = (
    *("unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--ipc", "--net"),
    *("--uts", "/sbin/ldconfig", "--version"),
)


def measure(bench: Benchmark) -> None:
    """Add the ratio of each thing to the least."""
    few = 1 if bench.quick else 3
    kinds: dict[str, tuple[str, Callable[[], Run], Callable[[], Run], float]] = {
        "a cell": (
            "two messages through pipes",
            partial(in_a_pool(_ask), 500 * few),
            partial(round_trips, 500 * few),
            2.0,
        ),
        "a fork": (
            "os.fork",
            partial(in_a_pool(_fork), 10 * few),
            partial(bare_forks, 10 * few),
            2.0,
        ),
    }
    if which("unshare") and os.access("/sbin/ldconfig", os.X_OK):
        opens, unshared = partial(in_a_pool(_open), 10 * few), partial(unshares, 10 * few)
        kinds["a session"] = ("unshare and a static program", opens, unshared, 3.0)
    else:
        bench.notes.append("sessions were not compared: there is no unshare, or no /sbin/ldconfig")
    for what, (least, set_up, set_up_least, times) in kinds.items():
        ours, theirs = bench.compare(
            {
                what: Contender(set_up=partial(tidied, set_up)),
                least: Contender(set_up=partial(tidied, set_up_least)),
            }
        ).values()
        tidy()
        bench.cost(what, ours)
        bench.cost(least, theirs)
        # A rate, as all ratios: at least half of the peer's is at most twice its cost.
        bench.ratio(f"{what} to {least}", ours, theirs, peer=least, goal=1 / times)


def round_trips(times: int) -> Run:
    """Return a run of messages through a pipe to another process, each answered through another."""

    def run() -> float:
        theirs, question = os.pipe()
        answer, back = os.pipe()
        if (pid := os.fork()) == 0:
            try:
                os.close(question)
                os.close(answer)
                while os.read(theirs, 1024):
                    os.write(back, _ANSWER)
            finally:
                os._exit(0)
        os.close(theirs)
        os.close(back)
        for _ in range(times):
            time.sleep(PAUSE_S)
            os.write(question, _QUESTION)
            os.read(answer, 1024)
        os.close(question)
        os.close(answer)
        os.waitpid(pid, 0)
        return float(times)

    return run


def bare_forks(times: int) -> Run:
    """Return a run of forks of an interpreter that holds `HELD`, each waited for."""
    loop = f"for _ in range({times}):\n pid = os.fork()\n pid or os._exit(0)\n os.waitpid(pid, 0)"
    code = f"import os\n{HELD}\nprint(flush=True)\ninput()\n{loop}\nos._exit(0)"
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()  # it holds everything

    def run() -> float:
        process.communicate(b"\n")
        if process.returncode:
            raise RuntimeError(f"the forking interpreter ended with {process.returncode}")
        return float(times)

    return run


def unshares(times: int) -> Run:
    """Return a run of static programs, each in namespaces of its own."""

    def run() -> float:
        for _ in range(times):
            subprocess.run(_LEAST_SESSION, check=True, stdout=subprocess.DEVNULL)
        return float(times)

    return run


def in_a_pool(play: _Play) -> _Timed:
    """Return what sets up a pool with a session that holds `HELD`, and plays there so often."""

    def set_up(times: int) -> Run:
        runner = asyncio.Runner()
        pool = ForkServerPool(settings(), warm=0)
        session = runner.run(_holding(pool))

        def run() -> float:
            runner.run(play(pool, session, times))
            close_later(runner, pool)
            return float(times)

        return run

    return set_up


async def _holding(pool: ForkServerPool) -> SandboxSession:
    session = await pool.open()
    result = await session.exec(HELD)
    assert result.ok, result
    await (await session.fork()).close()
    return session


async def _ask(pool: ForkServerPool, session: SandboxSession, times: int) -> None:
    for _ in range(times):
        time.sleep(PAUSE_S)  # noqa: ASYNC251 - the same pause as the peer's; the loop is idle
        assert (await session.exec(CELL)).value == "2"


async def _fork(pool: ForkServerPool, session: SandboxSession, times: int) -> None:
    for _ in range(times):
        await (await session.fork()).close()


async def _open(pool: ForkServerPool, session: SandboxSession, times: int) -> None:
    for _ in range(times):
        await (await pool.open()).close()
