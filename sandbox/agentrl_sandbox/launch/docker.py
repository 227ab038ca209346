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
from collections.abc import Mapping
from typing import Any

from agentrl.errors import ConfigError, SandboxError
from agentrl.runtime.threads import finish_in_thread
from agentrl.sandbox import SandboxSettings
from agentrl_sandbox.launch.contained import SandboxContainer, start_in_thread
from agentrl_sandbox.launch.container import PACKAGES, ROOT, EngineMachine, container, user_id
from agentrl_sandbox.launch.engine import ContainerImage, check_sdk
from agentrl_sandbox.launch.local import readable
from agentrl_sandbox.launch.users import draw_block, map_block
from agentrl_sandbox.lease import labels, new_mark


class StartedContainer(SandboxContainer):
    """A container with a supervisor, from before it is made until it is gone."""

    pid = None  # the engine bounds it
    root = ROOT

    def __init__(self, settings: SandboxSettings, packages: str, pool: str) -> None:
        super().__init__()
        self._settings = settings
        self._host_packages = packages
        self._pool = pool
        self.packages = PACKAGES if packages else ""

    def build_body(self, machine: EngineMachine) -> Mapping[str, Any]:
        """Return the request by which the engine makes it."""
        user = user_id(machine, secrets.randbits(32))
        if os.geteuid() == 0 and not machine.maps_users:
            ids = draw_block()
            user, self.users = ids.start, map_block(ids)
        return container(
            self._settings,
            machine,
            user=user,
            home=self.home.path,
            packages=self._host_packages,
            labels=labels(self._pool),
        )

    async def wait_end(self, within_s: float) -> bool:
        """Return whether its first process, and so all of it, ends within some time."""
        return await readable(self.pidfd, within_s)

    async def kill(self) -> None:
        """Have the engine kill and remove it."""
        await finish_in_thread(self.remove)

    async def release(self) -> None:
        """Wait until the engine has removed it, and free everything; `SandboxError`."""
        await finish_in_thread(self.discard)


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

        def make() -> StartedContainer:
            return StartedContainer(self._settings, self._packages, self._pool)

        def start(made: StartedContainer, stop: threading.Event) -> None:
            image = ContainerImage("sandbox.image", self._settings.image)
            made.make(image, made.build_body)
            try:
                made.run(control, stop)
            except SandboxError as error:
                raise ConfigError(self.explain(str(error))) from error

        return await start_in_thread(make, start)

    def explain(self, why: str) -> str:
        return (
            f"the fork server could not start in a container of {self._settings.image!r}: {why}; "
            "the image needs Python 3.11 or newer as python3, and the machine must allow user "
            "namespaces (sysctl user.max_user_namespaces and, on Ubuntu, "
            "kernel.apparmor_restrict_unprivileged_userns=0)"
        )
