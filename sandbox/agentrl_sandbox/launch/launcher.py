"""Interface of a back-end: a supervisor that runs, how it ended, and a way to end it."""

import os
from pathlib import Path
from socket import socket
from typing import Protocol

from agentrl.errors import ConfigError
from agentrl_sandbox.inside.container import OF_AGENTRL


class LauncherLog:
    """Standard error of a supervisor, in memory."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("agentrl-sandbox-log")
        self._kept = ""

    def tail(self) -> str:
        """Return the end of it, also after `close`."""
        if self.fd >= 0:
            size_bytes = os.fstat(self.fd).st_size
            tail = os.pread(self.fd, 4096, max(0, size_bytes - 4096))
            self._kept = tail.decode(errors="replace").strip()
        return self._kept

    def close(self) -> None:
        """Free the memory. Idempotent."""
        self.tail()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class StartedForkServer(Protocol):
    """A supervisor that is running. It ends by itself when its control socket is closed."""

    @property
    def pid(self) -> int | None:
        """Its process here, when nobody else bounds what it may use."""
        ...

    @property
    def root(self) -> str:
        """Root directory of its sessions, as it sees it."""
        ...

    @property
    def packages(self) -> str:
        """Path of `SandboxSettings.packages`, as it sees it; empty when there are none."""
        ...

    @property
    def log(self) -> LauncherLog:
        """Log of the supervisor."""
        ...

    async def wait_end(self, within_s: float) -> bool:
        """Return whether it ends within some time."""
        ...

    async def kill(self) -> None:
        """End it and everything behind it at once: the last resort."""
        ...

    async def release(self) -> None:
        """Free what the host holds of a supervisor that has ended. Idempotent."""
        ...


class ForkServerLauncher(Protocol):
    """Starts supervisors of one kind."""

    @property
    def isolated(self) -> bool:
        """Whether sessions get namespaces of their own."""
        ...

    async def start(self, control: socket) -> StartedForkServer:
        """Start a supervisor whose descriptor 0 is `control`.

        Nothing is left behind when this raises or is cancelled. `ConfigError` when this machine
        cannot run one as configured.
        """
        ...

    def explain(self, why: str) -> str:
        """Return the text of the error for a supervisor that could not start."""
        ...


def packages_directory(packages: str) -> str:
    """Return the absolute path of `SandboxSettings.packages`, or an empty string for none."""
    if not packages:
        return ""
    path = Path(packages).absolute()
    if not path.is_dir():
        raise ConfigError(
            f"sandbox.packages is {packages!r}, which is not a directory; create it with `pip "
            f"install --target {packages} PACKAGE`"
        )
    if matches := [one for name in OF_AGENTRL for one in path.glob(name)]:
        raise ConfigError(
            f"sandbox.packages is {packages!r}, which contains {matches[0].name}, where sessions "
            "could read the answers of agentrl's environments; create a directory with only the "
            "packages that sessions import, with `pip install --target DIR PACKAGE`"
        )
    return str(path)
