"""A supervisor inside a container: the engine isolates, and the supervisor isolates once more.

    host                         engine                       container
    makes a directory, listens,
    asks for a container   ────► starts it, bound read-only ► connects to the directory's socket
    checks that the peer is the container's first process
    hands over descriptors 0 and 2 ─────────────────────────► becomes the supervisor

From there on the engine has no part in it: sessions talk over sockets, and the container ends, and
is removed, when the host closes the supervisor's or dies.
"""

import os
import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

from agentrl.errors import AgentrlError, ConfigError, SandboxError
from agentrl.sandbox import SandboxSettings
from agentrl.thread import in_stoppable_thread, in_thread_to_the_end
from agentrl_sandbox.launch.container import (
    PACKAGES,
    ROOT,
    check_machine,
    container,
    user_id,
)
from agentrl_sandbox.launch.engine import Engine, check_sdk
from agentrl_sandbox.launch.handover import Home
from agentrl_sandbox.launch.launcher import Log
from agentrl_sandbox.launch.local import readable
from agentrl_sandbox.launch.users import Users, block, own_block
from agentrl_sandbox.lease import Lease, labels, new_mark
from agentrl_sandbox.reaping.engine import default_engine


class StartedContainer:
    """A container, from before it is made until it is gone; blocking but for `Started`'s part."""

    def __init__(self, settings: SandboxSettings, packages: str, pool: str) -> None:
        self._settings = settings
        self._host_packages = packages
        self._pool = pool
        self._name = f"agentrl-{secrets.token_hex(8)}"
        self._engine = Engine()
        self._lease = Lease.take("container", self._name, engine=default_engine())
        self._home = Home()
        self._users: Users | None = None
        self._pidfd = -1
        self.root = ROOT
        self.packages = PACKAGES if packages else ""
        self.log = Log()

    def make(self) -> None:
        """Have the engine make it; `ConfigError` when it, or the image, cannot be used."""
        machine = self._engine.machine()
        check_machine(machine)
        self._engine.check_image(self._settings.image)
        user = user_id(machine, secrets.randbits(32))
        if os.geteuid() == 0 and not machine.maps_users:
            ids = own_block()
            user, self._users = ids.start, block(ids)
        body = container(
            self._settings,
            machine,
            user=user,
            home=self._home.path,
            packages=self._host_packages,
            labels=labels(self._pool),
        )
        self._engine.create(self._name, body)

    def run(self, control: socket.socket, stop: threading.Event) -> None:
        """Start it and hand over what makes it a supervisor; `SandboxError` says why not."""
        with self._engine.errors_of(self._name) as errors:
            try:
                self._engine.start(self._name)
                pid = self._engine.process(self._name)
                self._pidfd = _pidfd_of(pid)
                fds = (control.fileno(), self.log.fd)
                self._home.hand_over(pid, self._pidfd, fds, stop, users=self._users)
            except SandboxError as error:
                raise SandboxError(self._said(errors) or str(error)) from error

    def _said(self, errors: Iterator[bytes]) -> str:
        """Return what its first process wrote before it had a log; it is ended for that."""
        with suppress(AgentrlError):
            self._engine.remove(self._name)
            return b"".join(errors).decode(errors="replace").strip()
        return ""

    def discard(self) -> None:
        """Have the engine remove it, and free everything; `SandboxError` when that fails.

        What stays then is left to the reaper.
        """
        try:
            self._engine.remove(self._name)
            self._lease.release()
        finally:
            self._home.remove()
            self._engine.close()
            self.log.close()
            if self._pidfd >= 0:
                os.close(self._pidfd)
                self._pidfd = -1

    @property
    def pid(self) -> None:
        """Return nothing: the engine bounds the container."""
        return

    async def wait_end(self, within_s: float) -> bool:
        """Return whether its first process, and so all of it, ends within some time."""
        return await readable(self._pidfd, within_s)

    async def kill(self) -> None:
        """Have the engine kill and remove it."""
        await in_thread_to_the_end(self._engine.remove, self._name)

    async def release(self) -> None:
        """Wait until the engine has removed it, and free everything; `SandboxError`."""
        await in_thread_to_the_end(self.discard)


class DockerLauncher:
    """Starts hardened containers, each with a supervisor; `ConfigError` without the SDK."""

    isolated = True

    def __init__(self, settings: SandboxSettings, packages: str) -> None:
        check_sdk()
        self._settings = settings
        self._packages = packages
        self._pool = new_mark()

    async def start(self, control: socket.socket) -> StartedContainer:
        """Start a container and hand its first process `control` and a log."""

        def work(stop: threading.Event) -> StartedContainer:
            started = StartedContainer(self._settings, self._packages, self._pool)
            try:
                started.make()
                try:
                    started.run(control, stop)
                except SandboxError as error:
                    raise ConfigError(self.explain(str(error))) from error
            except BaseException:
                started.discard()
                raise
            if stop.is_set():  # cancelled meanwhile: nobody is there to take it
                started.discard()
            return started

        return await in_stoppable_thread(work)

    def explain(self, why: str) -> str:
        """Return the text of the error for a supervisor that could not start."""
        return (
            f"the supervisor could not start in a container of {self._settings.image!r}: {why}; "
            "the image needs Python 3.11 or newer as python3, and the machine must allow user "
            "namespaces (sysctl user.max_user_namespaces and, on Ubuntu, "
            "kernel.apparmor_restrict_unprivileged_userns=0)"
        )


def _pidfd_of(pid: int) -> int:
    with suppress(ProcessLookupError):
        if pid > 0:
            return os.pidfd_open(pid)
    raise SandboxError("it ended at once")
