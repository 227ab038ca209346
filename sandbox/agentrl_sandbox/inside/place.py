"""Where a session keeps its files: a file system of its own in memory, or a bare directory.

Every session finds its files at the same path. The keeper reaches them through a descriptor, so a
copy's files need no path at all in the namespace of those it was copied from.
"""

import os
from dataclasses import dataclass

from agentrl_sandbox.inside import files, kernel, mounts
from agentrl_sandbox.inside.kernel import MS_NODEV, MS_NOSUID


@dataclass
class Place:
    """The directory of one session."""

    path: str
    """As the session sees it."""
    handle: str
    """As the keeper reaches it."""
    mount_fd: int = -1
    namespace_fd: int = -1
    """The mount namespace in which `path` is this place, when it is not the keeper's own."""

    def close(self) -> None:
        """Let go of it; a file system in memory ends with its last user."""
        for fd in (self.mount_fd, self.namespace_fd):
            if fd >= 0:
                os.close(fd)
        self.mount_fd = self.namespace_fd = -1


def options(disk_bytes: int, entries: int) -> dict[str, str]:
    """Return the options of a file system in memory with these limits."""
    # The root directory takes an entry of its own.
    return {"size": str(disk_bytes), "mode": "700", "nr_inodes": str(entries + 1)}


def mounted(path: str, disk_bytes: int, entries: int) -> Place:
    """Mount a file system in memory over `path`."""
    text = ",".join(f"{key}={value}" for key, value in options(disk_bytes, entries).items())
    kernel.mount("session", path, "tmpfs", MS_NOSUID | MS_NODEV, text)
    return Place(path, path)


def detached(path: str, disk_bytes: int, entries: int) -> Place:
    """Make a file system in memory that is mounted nowhere yet, and is to be mounted at `path`."""
    fd = mounts.detached("tmpfs", options(disk_bytes, entries))
    return Place(path, f"/proc/self/fd/{fd}/.", mount_fd=fd)


def bare(root: str, number: int) -> Place:
    """Make a directory below `root`."""
    path = os.path.join(root, str(number))
    os.mkdir(path, 0o700)
    return Place(path, path)


def appear(place: Place, pid: int, own_namespace_fd: int) -> None:
    """Mount a detached place at its path in the mount namespace of another process."""
    place.namespace_fd = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    kernel.join(place.namespace_fd, kernel.CLONE_NEWNS)
    try:
        mounts.attach(place.mount_fd, place.path)
    finally:
        kernel.join(own_namespace_fd, kernel.CLONE_NEWNS)
        os.chdir("/")


def copy(source: Place, target: Place) -> None:
    """Copy what one place holds into another, empty one."""
    files.copy_tree(source.handle, target.handle)
