"""The root of a sandbox: what it is made of, and how the kernel is asked to make it.

All that it shows of this machine is taken hold of first, as mounts that are mounted nowhere. Then
an empty file system becomes the root, and the old one is gone before the first of them is mounted:
whatever a link in a path says, it leads nowhere but into the new root.
"""

import os
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Literal, NamedTuple

from agentrl_sandbox.inside import kernel, mounts
from agentrl_sandbox.inside.mounts import NODEV, NOEXEC, NOSUID, READ_ONLY

Kind = Literal[
    "directory", "link", "bind", "bind-if-there", "device", "proc", "memory", "empty", "blank",
    "data", "seal",
]  # fmt: skip
"""Kinds of steps, by what each makes of its path.

directory       a directory that everybody may read
link            a link to `source`
bind            what is at `source` on this machine, with all below it, read-only
bind-if-there   the same, or nothing
device          the device at `source` on this machine
proc            the processes of the namespace
memory          an empty file system to put something in
empty           an empty directory, read-only, over whatever is there
blank           an empty file, read-only, over whatever is there
data            a read-only file whose bytes are given apart
seal            what is mounted there becomes read-only
"""


class RootStep(NamedTuple):
    """One step on the way to a root. Steps are taken in order."""

    kind: Kind
    path: str
    source: str = ""


_SHOWN = READ_ONLY | NOSUID | NODEV
_QUIET = NOSUID | NODEV | NOEXEC
_NULL = "/dev/null"
_PLACE = "/tmp"
"""Temporary path of the new root; only this process sees it."""


def make(steps: Sequence[RootStep], data: Mapping[str, bytes]) -> None:
    """Make a root of these steps our own; this process must own its mount namespace.

    `data` are the bytes of files, by path. `OSError` says which step the kernel refused.
    """
    kernel.mount("none", "/", None, kernel.MS_PRIVATE | kernel.MS_REC)
    fds = [_take_hold(step) for step in steps]
    umask = os.umask(0o022)
    mounts.make_root(mounts.make_detached("tmpfs", {"mode": "755"}), _PLACE)
    for step, fd in zip(steps, fds, strict=True):
        _take(step, fd, data)
    os.umask(umask)


def _take_hold(step: RootStep) -> int | None:
    """Return a mount that is mounted nowhere, for steps that mount one."""
    match step.kind:
        case "bind":
            return mounts.clone(step.source, _SHOWN)
        case "bind-if-there":
            with suppress(FileNotFoundError):
                return mounts.clone(step.source, _SHOWN)
        case "device":
            # Read-only: a device is driven all the same, and its owner and times stay.
            return mounts.clone(step.source, READ_ONLY | NOSUID | NOEXEC)
        case "blank":
            return mounts.clone(_NULL, _SHOWN)
        case "empty":
            return mounts.make_detached("tmpfs", {"mode": "755"}, READ_ONLY | _QUIET)
        case "memory":
            return mounts.make_detached("tmpfs", {"mode": "755"}, _QUIET)
        case "proc":
            # Now: once the old root is gone, the kernel sees no reason to show processes.
            return mounts.make_detached("proc", {}, _QUIET)
        case _:
            pass
    return None


def _take(step: RootStep, fd: int | None, data: Mapping[str, bytes]) -> None:
    if fd is not None:
        _make_place(step.path, is_directory=stat.S_ISDIR(os.fstat(fd).st_mode))
        mounts.attach(fd, step.path)
        os.close(fd)
        return
    match step.kind:
        case "directory":
            os.makedirs(step.path, exist_ok=True)
        case "link":
            os.symlink(step.source, step.path)
        case "data":
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with open(os.open(step.path, flags, 0o444), "wb") as file:
                file.write(data[step.path])
        case "seal":
            mounts.make_read_only(step.path)
        case _:
            pass


def _make_place(path: str, *, is_directory: bool) -> None:
    if os.path.lexists(path):
        return
    if is_directory:
        os.makedirs(path)
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444))
