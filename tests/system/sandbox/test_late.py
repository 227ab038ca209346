"""An interpreter that ends by itself just before it is stopped.

Mutants seen caught: its end is told to the next cell too; what it had written is lost.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from agentrl.sandbox import ExecResult, SandboxSettings
from agentrl_sandbox import ForkServerPool, SandboxSession
from agentrl_sandbox.interpreter_channel import (
    CellDeadlineError,
    InterpreterChannel,
    LineBroken,
)

DIES = "import os; print('said', flush=True); os._exit(3)"


@pytest.fixture
async def session() -> AsyncIterator[SandboxSession]:
    pool = ForkServerPool(SandboxSettings(backend="process", allow_unisolated=True))
    try:
        opened = await pool.open()
        assert isinstance(opened, SandboxSession)
        yield opened
    finally:
        await pool.close()


@pytest.fixture
def dead(session: SandboxSession, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Have cells that end their interpreter be known to have, and go on for all that."""
    told, ask = asyncio.Event(), InterpreterChannel.ask

    async def late(self: InterpreterChannel, code: str, *, timeout_s: float) -> ExecResult:
        if code != DIES:
            return await ask(self, code, timeout_s=timeout_s)
        with suppress(LineBroken):
            await ask(self, code, timeout_s=60)
        async with asyncio.timeout(60):
            while session._last_words is None:  # noqa: ASYNC110  # pyright: ignore[reportPrivateUsage]
                await asyncio.sleep(0.01)
        told.set()
        await asyncio.sleep(1)
        raise CellDeadlineError

    monkeypatch.setattr(InterpreterChannel, "ask", late)
    return told


async def test_a_cell_that_is_late_has_its_own_end_and_the_next_one_runs(
    session: SandboxSession, dead: asyncio.Event
) -> None:
    assert (await session.exec("x = 1")).ok
    ended = await session.exec(DIES, timeout_s=0.5)
    assert dead.is_set()
    assert (ended.status, ended.stdout) == ("timeout", "said\n")
    assert (await session.exec("1 + 1")).value == "2"


async def test_a_cell_that_was_cancelled_leaves_no_word_to_the_next(
    session: SandboxSession, dead: asyncio.Event
) -> None:
    cell = asyncio.create_task(session.exec(DIES))
    await dead.wait()
    cell.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cell
    assert (await session.exec("1 + 1")).value == "2"
