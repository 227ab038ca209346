"""A supervisor that is a child process of ours."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from socket import socket

from agentrl.errors import SandboxError
from agentrl.runtime.threads import run_in_thread
from agentrl_sandbox.launch.launcher import LauncherLog
from agentrl_sandbox.lease import ResourceLease

_REAP_S = 20.0


@dataclass(frozen=True, slots=True)
class StartedProcess:
    """A supervisor that leads a group of processes."""

    process: subprocess.Popen[bytes]
    root: str
    log: LauncherLog
    packages: str = ""
    lease: ResourceLease | None = None
    """Of the directory of its sessions, when they live on the host."""

    @property
    def pid(self) -> int:
        """Return its process."""
        return self.process.pid

    async def wait_end(self, within_s: float) -> bool:
        """Return whether it ends within some time, without reaping it."""
        try:
            pidfd = os.pidfd_open(self.process.pid)
        except ProcessLookupError:  # reaped
            return True
        try:
            return await readable(pidfd, within_s)
        finally:
            os.close(pidfd)

    async def kill(self) -> None:
        """Kill its whole group."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return

    async def release(self) -> None:
        """Reap it; remove its log, the directory of its sessions and whoever is left in there."""
        try:
            if not await self.wait_end(_REAP_S):
                raise SandboxError(f"sandbox fork server {self.pid} survived SIGKILL")
            self.process.wait()
        finally:
            self.log.close()
            if self.lease is not None:
                await run_in_thread(self.lease.clear)


def start_process(
    command: Sequence[str], control: socket, log: LauncherLog, fds: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    """Start a supervisor's process, out of reach of the terminal's Ctrl-C."""
    return subprocess.Popen(
        command,
        stdin=control.fileno(),
        stdout=subprocess.DEVNULL,
        stderr=log.fd,
        env={},
        cwd="/",
        pass_fds=fds,
        start_new_session=True,
    )


async def readable(fd: int, within_s: float) -> bool:
    """Return whether a descriptor becomes readable within some time."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(fd, lambda: ready.done() or ready.set_result(None))
    try:
        async with asyncio.timeout(within_s):
            await ready
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(fd)
    return True
