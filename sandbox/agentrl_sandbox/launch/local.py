"""A supervisor that is a child process of ours: isolated, or bare when the user says so."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from socket import socket

from agentrl.errors import SandboxError
from agentrl.runtime.threads import run_in_thread
from agentrl_sandbox.bundle import bundle
from agentrl_sandbox.launch.container import PACKAGES, ROOT
from agentrl_sandbox.launch.launcher import LauncherLog
from agentrl_sandbox.lease import ResourceLease, new_mark

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


def start_isolated(
    command: Sequence[str], control: socket, fds: Sequence[int], packages: str
) -> StartedProcess:
    """Start a supervisor by a command that isolates it, and close the descriptors it is given."""
    log = LauncherLog()
    try:
        process = start_process(command, control, log, fds)
    except BaseException:
        log.close()
        raise
    finally:
        for fd in fds:
            os.close(fd)
    return StartedProcess(process, ROOT, log, PACKAGES if packages else "")


def count_user_ids(command: Sequence[str], fds: Sequence[int], within_s: float) -> int:
    """Return the number of ids in the map of users that a command prints; close its descriptors.

    `OSError` or `subprocess.SubprocessError` when the command fails.
    """
    try:
        result = subprocess.run(
            command,
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={},
            cwd="/",
            timeout=within_s,
            check=True,
        )
    finally:
        for fd in fds:
            os.close(fd)
    return sum(int(line.split()[2]) for line in result.stdout.splitlines())


@dataclass(frozen=True, slots=True)
class ProcessLauncher:
    """A bare process of the same user: resource limits, and nothing else."""

    packages: str = ""
    isolated = False

    async def start(self, control: socket) -> StartedProcess:
        """Start the supervisor; packages are used where they lie."""
        return self._start(control)

    def _start(self, control: socket) -> StartedProcess:
        root = f"{tempfile.gettempdir()}/agentrl-sandbox-{new_mark()}"
        lease = ResourceLease.take("directory", root)
        log = LauncherLog()
        try:
            os.mkdir(root, 0o700)
            archive = Path(root, "inside.zip")
            archive.write_bytes(bundle())
            command = [sys.executable, "-I", "-S", "-X", "utf8", str(archive)]
            process = start_process(command, control, log)
        except BaseException:
            log.close()
            lease.clear()
            raise
        return StartedProcess(process, root, log, self.packages, lease)

    def explain(self, why: str) -> str:
        return f"the sandbox fork server did not start as a plain process: {why}"


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
