"""What a sandbox that does not start means: a wrong machine, or bad luck on a right one.

Mutants seen caught: a pool that never learns that it has worked, or knows it from the start;
silence taken for a refusal.
"""

import asyncio
import os
import signal
from dataclasses import dataclass
from socket import socket

import pytest

from agentrl.errors import ConfigError, RolloutError, SandboxError
from agentrl.sandbox import SandboxSettings
from agentrl_sandbox import ForkServerPool, pool
from agentrl_sandbox.launch import ForkServerLauncher, StartedForkServer, launcher

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


@dataclass
class Killing:
    """Starts supervisors and, when it has last words for them, kills each at once."""

    inner: ForkServerLauncher
    last_words: bytes | None
    newest: int = 0
    """The process id of the last one."""

    @property
    def isolated(self) -> bool:
        return self.inner.isolated

    async def start(self, control: socket) -> StartedForkServer:
        started = await self.inner.start(control)
        assert started.pid is not None
        if self.last_words is not None:
            os.kill(started.pid, signal.SIGKILL)
            os.write(started.log.fd, self.last_words)
        self.newest = started.pid
        return started

    def explain(self, why: str) -> str:
        return self.inner.explain(why)


@pytest.fixture
def killing(how: SandboxSettings, monkeypatch: pytest.MonkeyPatch) -> Killing:
    """Return what starts the supervisors of the next pool."""
    found = Killing(launcher(how), b"no namespaces here")

    def instead(settings: SandboxSettings) -> ForkServerLauncher:
        return found

    monkeypatch.setattr(pool, "launcher", instead)
    return found


@both
async def test_a_refusal_is_the_machines_fault_until_one_has_worked(
    how: SandboxSettings, killing: Killing
) -> None:
    places = ForkServerPool(how, warm=0)
    try:
        for _ in range(2):
            with pytest.raises(ConfigError, match="no namespaces here"):
                await places.open()
        killing.last_words = None
        await add(places)
        killing.last_words = b"no namespaces here"
        os.kill(killing.newest, signal.SIGKILL)
        with pytest.raises(SandboxError, match="neither did previous ones like it") as caught:
            await open_until_noticed(places)
        assert isinstance(caught.value, RolloutError)
        killing.last_words = None
        await add(places)
    finally:
        await places.close()


@both
async def test_a_supervisor_that_ends_without_a_word_is_nobodys_configuration(
    how: SandboxSettings, killing: Killing
) -> None:
    killing.last_words = b""
    places = ForkServerPool(how, warm=0)
    try:
        with pytest.raises(SandboxError, match="did not start") as caught:
            await places.open()
        assert isinstance(caught.value, RolloutError)
        killing.last_words = None
        await add(places)
    finally:
        await places.close()


async def open_until_noticed(places: ForkServerPool) -> None:
    """Open sessions until the pool has noticed the end of its supervisor, and started another.

    What was asked of a supervisor that is dying fails in its own words.
    """
    async with asyncio.timeout(60):
        while True:
            try:
                await places.open()
            except SandboxError as error:
                if "a sandbox did not start" in str(error):
                    raise


async def add(places: ForkServerPool) -> None:
    session = await places.open()
    assert (await session.exec("1 + 1")).value == "2"
