"""The kernel's descriptors for mounts (Linux 5.2), by way of ctypes."""

import ctypes
import os
from collections.abc import Mapping

_libc = ctypes.CDLL(None, use_errno=True)
_MOVE_MOUNT, _FSOPEN, _FSCONFIG, _FSMOUNT = 429, 430, 431, 432
"""The same on every architecture: newer than the tables that differ."""
_SET_STRING, _CREATE = 1, 6
_CLOEXEC = 1
_NOSUID, _NODEV = 2, 4
_FROM_EMPTY_PATH = 4
_HERE = -100


def _call(what: str, number: int, *arguments: object) -> int:
    result = _libc.syscall(number, *arguments)
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")
    return result


def detached(kind: str, options: Mapping[str, str]) -> int:
    """Return the descriptor of a new file system that is mounted nowhere."""
    context = _call("fsopen", _FSOPEN, kind.encode(), _CLOEXEC)
    try:
        for key, value in options.items():
            text = (key.encode(), value.encode())
            _call(f"fsconfig {key}={value}", _FSCONFIG, context, _SET_STRING, *text, 0)
        _call("fsconfig", _FSCONFIG, context, _CREATE, None, None, 0)
        return _call("fsmount", _FSMOUNT, context, _CLOEXEC, _NOSUID | _NODEV)
    finally:
        os.close(context)


def attach(fd: int, target: str) -> None:
    """Mount what `detached` made, once."""
    _call(f"mount {target}", _MOVE_MOUNT, fd, b"", _HERE, target.encode(), _FROM_EMPTY_PATH)
