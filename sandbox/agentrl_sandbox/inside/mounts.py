"""The kernel's descriptors for mounts (Linux 5.2; `clone` 5.12), by way of ctypes."""

import ctypes
import os
from collections.abc import Mapping

from agentrl_sandbox.inside import kernel

_libc = ctypes.CDLL(None, use_errno=True)
_OPEN_TREE, _MOVE_MOUNT, _FSOPEN, _FSCONFIG, _FSMOUNT, _SETATTR = 428, 429, 430, 431, 432, 442
"""The same on every architecture: newer than the tables that differ."""
_SET_STRING, _CREATE = 1, 6
_CLOEXEC, _CLONE = 1, 1
READ_ONLY, NOSUID, NODEV, NOEXEC = 1, 2, 4, 8
_FROM_EMPTY_PATH = 4
_EMPTY_PATH, _RECURSIVE = 0x1000, 0x8000
_HERE = -100


def _call(what: str, number: int, *arguments: object) -> int:
    return kernel.check(_libc.syscall(number, *arguments), what)


def make_detached(kind: str, options: Mapping[str, str], attributes: int = NOSUID | NODEV) -> int:
    """Return the descriptor of a new file system that is mounted nowhere."""
    context = _call(f"fsopen {kind}", _FSOPEN, kind.encode(), _CLOEXEC)
    try:
        for key, value in options.items():
            text = (key.encode(), value.encode())
            _call(f"fsconfig {key}={value}", _FSCONFIG, context, _SET_STRING, *text, 0)
        _call(f"fsconfig {kind}", _FSCONFIG, context, _CREATE, None, None, 0)
        return _call(f"fsmount {kind}", _FSMOUNT, context, _CLOEXEC, attributes)
    finally:
        os.close(context)


def clone(path: str, attributes: int) -> int:
    """Return the descriptor of a second mount of a file, or of a directory and all below it.

    The attributes are set on every mount of it, before anybody can reach it.
    """
    flags = _CLONE | os.O_CLOEXEC | _RECURSIVE
    fd = _call(f"open_tree {path}", _OPEN_TREE, _HERE, path.encode(), flags)
    try:
        _set_attributes(f"mount_setattr {path}", fd, b"", _EMPTY_PATH | _RECURSIVE, attributes)
    except BaseException:
        os.close(fd)
        raise
    return fd


def attach(fd: int, target: str) -> None:
    """Mount what `make_detached` or `clone` made, once."""
    _call(f"mount {target}", _MOVE_MOUNT, fd, b"", _HERE, target.encode(), _FROM_EMPTY_PATH)


def make_read_only(target: str) -> None:
    """Let nothing be written any more to what is mounted there, but to what is mounted below it."""
    _set_attributes(f"mount_setattr {target}", _HERE, target.encode(), 0, READ_ONLY)


def _set_attributes(what: str, at: int, path: bytes, flags: int, attributes: int) -> None:
    value = (ctypes.c_uint64 * 4)(attributes)  # to set; none to clear
    _call(what, _SETATTR, at, path, flags, value, ctypes.c_size_t(ctypes.sizeof(value)))


def make_root(fd: int, at: str) -> None:
    """Make what `make_detached` made the root, by way of a directory, and let go of the old one."""
    attach(fd, at)
    os.fchdir(fd)
    # The old root comes to lie on top of the new one, and so has its name until it is gone.
    kernel.check(_libc.pivot_root(b".", b"."), "pivot_root")
    kernel.detach(".")
    os.chdir("/")
