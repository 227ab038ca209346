"""What a sandbox that does not start means: a wrong machine, or bad luck on a right one.

Mutants seen caught: settings never noted as working; noted before a session was opened; silence
taken for a refusal.
"""

import os
import signal
from dataclasses import dataclass, replace
from socket import socket

import pytest

from agentrl.errors import ConfigError, RolloutError, SandboxError
from agentrl.sandbox import Limits, SandboxSettings
from agentrl_sandbox import ForkServerPool, pool
from agentrl_sandbox.launch import Launcher, Started, launcher

BARE = SandboxSettings(backend="process", allow_unisolated=True)
both = pytest.mark.parametrize(
    "how",
    [
        pytest.param(SandboxSettings(), id="bubblewrap", marks=pytest.mark.bubblewrap),
        pytest.param(BARE, id="process"),
    ],
)


@dataclass
class Killing:
    """Starts supervisors and kills each at once, with something on its log or nothing."""

    inner: Launcher
    last_words: bytes

    @property
    def isolated(self) -> bool:
        return self.inner.isolated

    async def start(self, control: socket) -> Started:
        started = await self.inner.start(control)
        assert started.pid is not None
        os.kill(started.pid, signal.SIGKILL)
        os.write(started.log.fd, self.last_words)
        return started

    def explain(self, why: str) -> str:
        return self.inner.explain(why)


def only(how: SandboxSettings, processes: int) -> SandboxSettings:
    """Return settings that no other test has opened anything with."""
    return replace(how, limits=Limits(processes=processes))


def kill_all_that_start(patch: pytest.MonkeyPatch, *, last_words: bytes) -> None:
    def killing(how: SandboxSettings) -> Launcher:
        return Killing(launcher(how), last_words)

    patch.setattr(pool, "launcher", killing)


@both
async def test_a_refusal_is_the_machines_fault_until_one_has_worked(
    how: SandboxSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    how = only(how, 41)
    with monkeypatch.context() as patch:
        kill_all_that_start(patch, last_words=b"no namespaces here")
        for _ in range(2):
            with pytest.raises(ConfigError, match="no namespaces here"):
                await open_one(how)
    await open_one(how)
    with monkeypatch.context() as patch:
        kill_all_that_start(patch, last_words=b"no namespaces here")
        with pytest.raises(SandboxError, match="earlier ones like it did") as caught:
            await open_one(how)
        assert isinstance(caught.value, RolloutError)
        with pytest.raises(ConfigError):
            await open_one(only(how, 42))
    await open_one(how)


@both
async def test_a_supervisor_that_ends_without_a_word_is_nobodys_configuration(
    how: SandboxSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    how = only(how, 43)
    with monkeypatch.context() as patch:
        kill_all_that_start(patch, last_words=b"")
        with pytest.raises(SandboxError, match="did not start") as caught:
            await open_one(how)
        assert isinstance(caught.value, RolloutError)
    await open_one(how)


async def open_one(how: SandboxSettings) -> None:
    places = ForkServerPool(how, warm=0)
    try:
        session = await places.open()
        assert (await session.exec("1 + 1")).value == "2"
    finally:
        await places.close()
