"""Files of a session: a file system of its own in memory, or a bare directory.

Every session finds its files at the same path. The keeper reaches them through a descriptor, so a
copy's files need no path at all in the namespace of those it was copied from.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from agentrl_sandbox.inside import files, kernel, mounts, network
from agentrl_sandbox.inside.kernel import MS_NODEV, MS_NOSUID

_KINDS = {
    "mnt": kernel.CLONE_NEWNS,
    "net": kernel.CLONE_NEWNET,
    "ipc": kernel.CLONE_NEWIPC,
}
OWN = kernel.CLONE_NEWNS | kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC
"""Namespaces that a copy does not share with its original."""


@dataclass
class SessionDirectory:
    """The directory of one session."""

    path: str
    """Path as the session sees it."""
    handle: str
    """Path as the keeper reaches it."""
    fd: int = -1
    """Descriptor that the handle stands for."""
    is_detached: bool = False
    """It is mounted nowhere yet."""
    namespaces: dict[int, int] = field(default_factory=dict[int, int])
    """Descriptors by kind, when they are not the keeper's own."""

    def close(self) -> None:
        """Let go of it; a file system in memory ends with its last user."""
        for fd in (self.fd, *self.namespaces.values()):
            if fd >= 0:
                os.close(fd)
        self.fd = -1
        self.namespaces.clear()


def options(disk_bytes: int, entries: int) -> dict[str, str]:
    """Return the options of a file system in memory with these limits.

    It belongs to the user as whom this process uses files.
    """
    # The root directory takes an entry of its own.
    return {"size": str(disk_bytes), "mode": "700", "nr_inodes": str(entries + 1)}


def mount_directory(path: str, disk_bytes: int, entries: int) -> SessionDirectory:
    """Mount a file system in memory over `path`."""
    text = ",".join(f"{key}={value}" for key, value in options(disk_bytes, entries).items())
    kernel.mount("session", path, "tmpfs", MS_NOSUID | MS_NODEV, text)
    return SessionDirectory(path, path)


def make_detached(path: str, disk_bytes: int, entries: int) -> SessionDirectory:
    """Make a file system in memory that is mounted nowhere yet, and is to be mounted at `path`."""
    fd = mounts.make_detached("tmpfs", options(disk_bytes, entries))
    return SessionDirectory(path, f"/proc/self/fd/{fd}/.", fd=fd, is_detached=True)


def make_bare(root: str, number: int) -> SessionDirectory:
    """Make a directory below `root`. The code may put anything in its place: we hold on to it."""
    path = os.path.join(root, str(number))
    os.mkdir(path, 0o700)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    return SessionDirectory(path, f"/proc/self/fd/{fd}/.", fd=fd)


def open_own_namespaces() -> dict[int, int]:
    """Return descriptors of this process's own namespaces, by kind."""
    return _namespaces("self")


def _namespaces(pid: int | str) -> dict[int, int]:
    flags = os.O_RDONLY | os.O_CLOEXEC
    return {kind: os.open(f"/proc/{pid}/ns/{name}", flags) for name, kind in _KINDS.items()}


def attach_directory(place: SessionDirectory, pid: int, own: Mapping[int, int]) -> None:
    """Mount a detached place at its path in the namespaces of another process.

    The calling process is in its `own` ones before and afterwards.
    """
    place.namespaces = _namespaces(pid)
    try:
        for kind, fd in place.namespaces.items():
            kernel.join(fd, kind)
        mounts.attach(place.fd, place.path)
        place.is_detached = False
        network.raise_loopback()
    finally:
        for kind, fd in own.items():
            kernel.join(fd, kind)
        os.chdir("/")


def attach_in_new_namespaces(place: SessionDirectory) -> None:
    """Make namespaces for a detached place in which nothing runs yet."""
    ready, hold = os.pipe(), os.pipe()
    pid = kernel.fork()
    if pid == 0:
        try:
            os.close(hold[1])
            kernel.set_dumpable(True)  # else, in a container, the keeper may not open what is ours
            kernel.unshare(OWN)
            os.write(ready[1], b"y")
            os.read(hold[0], 1)
        finally:
            os._exit(0)
    namespaces = open_own_namespaces()
    try:
        os.close(ready[1])
        os.close(hold[0])
        if os.read(ready[0], 1) != b"y":
            raise OSError("no namespaces for the copy")
        attach_directory(place, pid, namespaces)
    finally:
        for fd in (ready[0], hold[1], *namespaces.values()):
            os.close(fd)
        os.waitpid(pid, 0)


def copy(source: SessionDirectory, target: SessionDirectory) -> None:
    """Copy what one place holds into another, empty one."""
    files.copy_tree(source.handle, target.handle)
