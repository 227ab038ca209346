"""Sessions made ahead: used once, gone with the pool, and no excuse for anybody's failure."""

import asyncio
import os
import signal
import time
from collections.abc import Callable

import pytest

from agentrl.errors import SandboxError
from agentrl.sandbox import SandboxSettings
from agentrl.testing.leaks import ProcessHoldings, check_no_leak
from agentrl_sandbox.inside.processes import descendants, parents
from tests.support.pools import opened

BARE = SandboxSettings(backend="process", allow_unisolated=True)
both = pytest.mark.parametrize(
    "how",
    [
        pytest.param(SandboxSettings(), id="namespaces", marks=pytest.mark.namespaces),
        pytest.param(
            SandboxSettings(backend="bubblewrap"), id="bubblewrap", marks=pytest.mark.bubblewrap
        ),
        pytest.param(BARE, id="process"),
    ],
)


async def until(true: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.02)


@pytest.fixture
def keepers(how: SandboxSettings) -> Callable[[], set[int]]:
    """Return what tells the keepers that were not below us before, one per session."""
    before = descendants(os.getpid())
    levels = 2 if how.backend == "process" else 3  # what isolates is one process more

    def below() -> set[int]:
        table, level = parents(), {os.getpid()}
        for _ in range(levels):
            level = {pid for pid, up in table.items() if up in level} - before
        return level

    return below


@both
async def test_as_many_as_were_opened_are_made_ahead_and_no_more(
    how: SandboxSettings, keepers: Callable[[], set[int]]
) -> None:
    """Meant for (no such mutant has been run yet): no bound, a session that stays in the pool when
    it is handed out.
    """
    async with opened(how, warm=2) as pool:
        sessions = [await pool.open()]
        await until(lambda: len(keepers()) == 2)
        sessions += [await pool.open() for _ in range(4)]
        await until(lambda: len(keepers()) == 5 + 2)
        await asyncio.sleep(0.1)
        assert len(keepers()) == 5 + 2
        for number, session in enumerate(sessions):
            assert (await session.exec(f"n = {number}; n")).value == f"{number}"
            assert (await session.exec("import os; os.listdir()")).value == "[]"


@both
async def test_none_is_made_ahead_when_none_is_wanted(
    how: SandboxSettings, keepers: Callable[[], set[int]]
) -> None:
    async with opened(how, warm=0) as pool:
        session = await pool.open()
        await asyncio.sleep(0.1)
        assert len(keepers()) == 1
        await session.close()


@both
async def test_each_serves_once_and_draws_its_own_numbers(how: SandboxSettings) -> None:
    """Meant for (no such mutant has been run yet): a fork whose `random` is not seeded anew; a
    directory or names used again.
    """
    async with opened(how, warm=2) as pool:
        drawn: set[str | None] = set()
        for _ in range(6):
            session = await pool.open()
            assert (await session.exec("sorted(n for n in dir() if n[0] != '_')")).value == "[]"
            drawn.add((await session.exec("import random; left = 1; random.random()")).value)
            assert (await session.exec("open('left', 'x').close()")).ok
            await session.close()
            await asyncio.sleep(0.03)
        assert len(drawn) == 6


@both
async def test_one_that_died_is_not_handed_out(
    how: SandboxSettings, keepers: Callable[[], set[int]]
) -> None:
    async with opened(how, warm=1) as pool:
        session = await pool.open()
        own = min(keepers())
        await until(lambda: len(keepers()) == 2)
        (waiting,) = keepers() - {own}
        os.kill(waiting, signal.SIGKILL)
        await until(lambda: waiting not in keepers())
        try:
            other = await pool.open()
        except SandboxError:  # it had not been missed yet
            other = await pool.open()
        assert (await other.exec("1 + 1")).value == "2"
        assert (await session.exec("1 + 1")).value == "2"


@both
async def test_nothing_is_left_of_those_nobody_opened(
    how: SandboxSettings, keepers: Callable[[], set[int]]
) -> None:
    before = ProcessHoldings.take()
    others = descendants(os.getpid())
    async with opened(how, warm=3) as pool:
        sessions = [await pool.open() for _ in range(3)]
        await until(lambda: len(keepers()) == 6)
        below = descendants(os.getpid()) - others
        await asyncio.gather(*(session.close() for session in sessions))
    assert not below & descendants(os.getpid())
    await check_no_leak(before)


@both
async def test_a_burst_is_answered_in_full_and_cancelled_opens_leave_nothing(
    how: SandboxSettings, keepers: Callable[[], set[int]]
) -> None:
    before = ProcessHoldings.take()
    async with opened(how, warm=2) as pool:
        opening = [asyncio.create_task(pool.open()) for _ in range(12)]
        await asyncio.sleep(0.15)
        for task in opening[::3]:
            task.cancel()
        done = await asyncio.gather(*opening, return_exceptions=True)
        sessions = [one for one in done if not isinstance(one, BaseException)]
        assert len(sessions) >= 8
        values = await asyncio.gather(*(s.exec(f"{n}") for n, s in enumerate(sessions)))
        assert [one.value for one in values] == [f"{n}" for n in range(len(sessions))]
        await asyncio.gather(*(session.close() for session in sessions))
        await until(lambda: len(keepers()) == 2)
    await check_no_leak(before)


@both
async def test_the_last_close_ends_what_the_code_has_started(
    how: SandboxSettings, keepers: Callable[[], set[int]]
) -> None:
    """Meant for (no such mutant has been run yet): answering before the processes of the session
    are killed.
    """
    async with opened(how, warm=0) as pool:
        session, _ = await pool.open(), await pool.open()
        before = descendants(os.getpid())
        daemon = "import os, time\nif os.fork() == 0:\n  os.setsid()\n  while True: time.sleep(1)"
        assert (await session.exec(daemon)).ok
        assert descendants(os.getpid()) - before
        await session.close()
        await until(lambda: len(keepers()) == 1 and not descendants(os.getpid()) - before)
