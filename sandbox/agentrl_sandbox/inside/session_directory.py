"""Files of a session: a file system of its own in memory, or a bare directory.

Every session finds its files at the same path. The keeper reaches them through a descriptor, so a
copy's files need no path at all in the namespace of those it was copied from.
"""

import fcntl
import os
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from agentrl_sandbox.inside import kernel, mounts
from agentrl_sandbox.inside.kernel import MS_NODEV, MS_NOSUID

_KINDS = {
    "mnt": kernel.CLONE_NEWNS,
    "net": kernel.CLONE_NEWNET,
    "ipc": kernel.CLONE_NEWIPC,
}
OWN = kernel.CLONE_NEWNS | kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC
"""Namespaces that a copy does not share with its original."""
_SET_FLAGS, _FLAGS, _UP = 0x8914, struct.Struct("16sh22x"), 1


@dataclass
class SessionDirectory:
    """The directory of one session."""

    path: str
    """Path as the session sees it."""
    handle: str
    """Path as the keeper reaches it."""
    fd: int = -1
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


def _build_options(disk_bytes: int, entries: int) -> dict[str, str]:
    """Return the options of a file system in memory with these limits.

    It belongs to the user as whom this process uses files.
    """
    # The root directory takes an entry of its own.
    return {"size": str(disk_bytes), "mode": "700", "nr_inodes": str(entries + 1)}


def mount_directory(path: str, disk_bytes: int, entries: int) -> SessionDirectory:
    """Mount a file system in memory over `path`."""
    text = ",".join(f"{key}={value}" for key, value in _build_options(disk_bytes, entries).items())
    kernel.mount("session", path, "tmpfs", MS_NOSUID | MS_NODEV, text)
    return SessionDirectory(path, path)


def make_detached(path: str, disk_bytes: int, entries: int) -> SessionDirectory:
    """Make a file system in memory that is mounted nowhere yet, and is to be mounted at `path`."""
    fd = mounts.make_detached("tmpfs", _build_options(disk_bytes, entries))
    return SessionDirectory(path, f"/proc/self/fd/{fd}/.", fd=fd, is_detached=True)


def make_bare(root: str, number: int) -> SessionDirectory:
    """Make a directory below `root`. The code may put anything in its place: we hold on to it."""
    path = os.path.join(root, str(number))
    os.mkdir(path, 0o700)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    return SessionDirectory(path, f"/proc/self/fd/{fd}/.", fd=fd)


def open_namespaces(pid: int | str = "self") -> dict[int, int]:
    """Return descriptors of a process's namespaces, by kind."""
    flags = os.O_RDONLY | os.O_CLOEXEC
    return {kind: os.open(f"/proc/{pid}/ns/{name}", flags) for name, kind in _KINDS.items()}


def attach_directory(place: SessionDirectory, pid: int, own: Mapping[int, int]) -> None:
    """Mount a detached place at its path in the namespaces of another process.

    The calling process is in its `own` ones before and afterwards.
    """
    place.namespaces = open_namespaces(pid)
    try:
        for kind, fd in place.namespaces.items():
            kernel.join(fd, kind)
        mounts.attach(place.fd, place.path)
        place.is_detached = False
        raise_loopback()
    finally:
        for kind, fd in own.items():
            kernel.join(fd, kind)
        os.chdir("/")


def attach_in_new_namespaces(place: SessionDirectory) -> None:
    """Make namespaces for a detached place in which nothing runs yet."""

    def enter() -> None:
        kernel.set_dumpable(True)  # else, in a container, the keeper may not open what is ours
        kernel.unshare(OWN)

    own = open_namespaces()
    try:
        with kernel.hold_namespaces(enter, "no namespaces for the copy") as pid:
            attach_directory(place, pid, own)
    finally:
        for fd in own.values():
            os.close(fd)


def raise_loopback() -> None:
    """Switch on the loopback device of this process's network namespace, which we must own."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SET_FLAGS, _FLAGS.pack(b"lo", _UP))
