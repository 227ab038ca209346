"""A running supervisor as the host sees it: a control socket, and what bounds it from outside."""

import asyncio
import os
import socket
from dataclasses import asdict
from functools import partial
from typing import Self

from agentrl.errors import ConfigError, SandboxError
from agentrl.runtime.threads import await_to_the_end
from agentrl.sandbox import SandboxSettings
from agentrl_sandbox.cgroup.sandbox_cgroups import PoolCgroup, SessionCgroup
from agentrl_sandbox.control_channel import ControlChannel
from agentrl_sandbox.inside.frames import START_S, encode
from agentrl_sandbox.launch import ForkServerLauncher, StartedForkServer
from agentrl_sandbox.session_forks import GRACE_S

END_S = 5.0
"""Deadline for a supervisor to end when its socket is closed, before it is killed."""


class ForkServerProcess:
    """A running supervisor process and its control socket."""

    def __init__(self, started: StartedForkServer, control: ControlChannel) -> None:
        self._started = started
        self._control = control
        self._fence: PoolCgroup | None = None

    @classmethod
    async def start(cls, how: ForkServerLauncher, settings: SandboxSettings, *, warm: int) -> Self:
        """Start one and wait until it can open sessions.

        `ConfigError` when it says why it cannot start, `SandboxError` when it ends without a word.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                started = await how.start(theirs)
            except BaseException:
                ours.close()
                raise
        control = ControlChannel(ours, partial(_explain_end, started))
        supervisor = cls(started, control)
        place = {"root": started.root, "isolated": how.isolated, "packages": started.packages}
        try:
            control.send(encode({**asdict(settings.limits), **place, "warm": warm}))
            await control.greeting(START_S)
            if started.pid is not None:
                supervisor._fence = await PoolCgroup.around(started.pid, settings)
        except SandboxError as error:
            log = started.log.tail()
            await await_to_the_end(supervisor.close())
            # What a machine does not allow is said. One that was killed says nothing.
            if not log:
                raise SandboxError(f"a sandbox fork server did not start: {error}") from error
            raise ConfigError(how.explain(log)) from error
        except BaseException:
            await await_to_the_end(supervisor.close())
            raise
        return supervisor

    @property
    def alive(self) -> bool:
        """Whether it can still open sessions."""
        return not self._control.ended

    async def open(self) -> tuple[socket.socket, SessionCgroup | None]:
        """Open a session; return the socket of its keeper, and its cgroup where there is one."""
        reply = await self._control.ask({"op": "open"}, within_s=START_S + GRACE_S)
        if not reply.fds:
            raise SandboxError(reply.frame.body["error"])
        end, keeper = reply.fds
        try:
            fence = None if self._fence is None else self._fence.session(keeper)
        finally:
            os.close(keeper)
        return socket.socket(fileno=end), fence

    async def close(self) -> None:
        """End it and everything behind it, and wait for the end."""
        self._control.close()
        if not await self._started.wait_end(END_S):
            await self._started.kill()
            await self._started.wait_end(END_S)
        try:
            await self._started.release()
        finally:
            if self._fence is not None:
                await asyncio.shield(self._fence.close())


def _explain_end(started: StartedForkServer) -> str:
    log = started.log.tail()
    return "the sandbox fork server ended" + (f": {log}" if log else "")
