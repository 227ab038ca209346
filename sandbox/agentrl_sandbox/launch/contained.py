"""A container of ours, whatever runs in it: made, started, handed its descriptors, removed."""

import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from agentrl.errors import AgentrlError, SandboxError
from agentrl.runtime.threads import run_in_stoppable_thread
from agentrl_sandbox.launch.container import EngineMachine, check_machine
from agentrl_sandbox.launch.engine import ContainerImage, DockerEngine
from agentrl_sandbox.launch.handover import HandoverFolder
from agentrl_sandbox.launch.launcher import LauncherLog
from agentrl_sandbox.launch.users import NamespaceUsers
from agentrl_sandbox.lease import ResourceLease
from agentrl_sandbox.reaping.engine import default_engine


class SandboxContainer:
    """A container and what the host holds of it. Every method blocks, on the engine."""

    def __init__(self, files: Mapping[str, bytes] | None = None) -> None:
        """`files` are those of its directory on the host, see `HandoverFolder`."""
        self._name = f"agentrl-{secrets.token_hex(8)}"
        self._engine = DockerEngine()
        self._lease = ResourceLease.take("container", self._name, engine=default_engine())
        self.home = HandoverFolder(files)
        self.process = 0
        """Its first process, by its pid here."""
        self.pidfd = -1
        self.users: NamespaceUsers | None = None
        """Mapped in the user namespace that its first process makes."""
        self.log = LauncherLog()

    def make(
        self, image: ContainerImage, body: Callable[[EngineMachine], Mapping[str, Any]]
    ) -> None:
        """Have the engine make it; `ConfigError` when it, or the image, cannot be used."""
        machine = self._engine.machine()
        check_machine(machine)
        self._engine.check_image(image)
        self._engine.create(self._name, dict(body(machine)))

    def run(self, control: socket.socket, stop: threading.Event) -> None:
        """Start it and hand over its descriptors 0 and 2; `SandboxError` says why not."""
        with self._engine.errors_of(self._name) as errors:
            # What was never started says nothing, and what it says has no end.
            self._engine.start(self._name)
            try:
                self.process = self._engine.process(self._name)
                self.pidfd = _pidfd_of(self.process)
                fds = (control.fileno(), self.log.fd)
                self.home.hand_over(self.process, self.pidfd, fds, stop, self.users)
            except SandboxError as error:
                raise SandboxError(self._read_errors(errors) or str(error)) from error

    def _read_errors(self, errors: Iterator[bytes]) -> str:
        """Return the output of its first process before it had a log; it is ended for that."""
        with suppress(AgentrlError):
            self._engine.remove(self._name)
            return b"".join(errors).decode(errors="replace").strip()
        return ""

    def remove(self) -> None:
        """Have the engine kill and remove it."""
        self._engine.remove(self._name)

    def discard(self) -> None:
        """Have the engine remove it, and free everything; `SandboxError` when that fails.

        What stays then is left to the reaper.
        """
        try:
            self.remove()
            self._lease.release()
        finally:
            self.home.remove()
            self._engine.close()
            self.log.close()
            if self.pidfd >= 0:
                os.close(self.pidfd)
                self.pidfd = -1


class DiscardableContainer(Protocol):
    """Resource that is freed when nobody takes it."""

    def discard(self) -> None:
        """Free everything; it blocks."""
        ...


D = TypeVar("D", bound=DiscardableContainer)


async def start_in_thread(
    make: Callable[[], D], start: Callable[[D, threading.Event], object]
) -> D:
    """Make something and start it, in a thread; nothing is left of it on an error or a cancel."""

    def work(stop: threading.Event) -> D:
        container = make()
        try:
            start(container, stop)
        except BaseException:
            container.discard()
            raise
        return container

    return await run_in_stoppable_thread(work, lambda container: container.discard())


def _pidfd_of(pid: int) -> int:
    with suppress(ProcessLookupError):
        if pid > 0:
            return os.pidfd_open(pid)
    raise SandboxError("it ended immediately")
