"""Landlock: what a process and all it starts may do with files, and whom it may reach. For ever.

Another mechanism than the namespaces and the filter, so that one hole in the kernel does not open
all three. Restrictions stack: each only takes away from what was left.
"""

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Sequence

from agentrl_sandbox.inside import kernel

_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446  # the same on every machine
_ASK_VERSION = 1
_PATH_BENEATH = 1
ABI_MAX = 7
"""The newest interface this module knows; a newer kernel is used as if it were this old."""

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
MAKE_CHAR, MAKE_BLOCK = 1 << 6, 1 << 11
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_FIRST = (1 << 13) - 1  # ABI 1: all of the above up to making links, pipes and sockets
_SINCE = {2: REFER, 3: TRUNCATE, 5: IOCTL_DEV}
_OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE
ABSTRACT_SOCKETS, SIGNALS = 1, 2
_SCOPES_SINCE = 6

LAYERS_MAX = 16
"""Domains one process can be in, one inside the other."""


def rights(abi: int) -> int:
    """Return every right on files that a kernel of this interface can withhold."""
    if abi < 1:
        return 0
    return _FIRST | sum(right for since, right in _SINCE.items() if abi >= since)


def scopes(abi: int) -> int:
    """Return the scopes that a kernel of this interface can confine to a domain."""
    return ABSTRACT_SOCKETS | SIGNALS if abi >= _SCOPES_SINCE else 0


def read_rights(abi: int) -> int:
    """Return the rights beneath a directory that can be read and run programs from."""
    return (EXECUTE | READ_FILE | READ_DIR) & rights(abi)


def write_rights(abi: int) -> int:
    """Return the rights beneath a directory of one's own: all but making and driving devices."""
    return rights(abi) & ~(MAKE_CHAR | MAKE_BLOCK | IOCTL_DEV)


def abi() -> int:
    """Return the interface this kernel offers, at most `ABI_MAX`; 0 without Landlock."""
    return min(ABI_MAX, max(0, kernel.system_call(_CREATE, 0, 0, _ASK_VERSION)))


def enter(read_only: Sequence[str], writable: Sequence[str]) -> int:
    """Withhold all files but these, and everybody outside of this process and its children.

    Every path is a directory, with what is beneath it, or one file; the read-only ones may be run,
    the writable ones may be run too. Paths that do not exist are left out. What is mounted
    beneath a path later belongs to it; what is mounted over the path itself does not, for it hides
    what was granted. Nothing can be mounted from within. Sockets of the network are left alone: the
    network namespace holds them. Holds for this thread and what it starts.

    Needs no_new_privs. Returns the interface in use, 0 where the kernel has no Landlock and nothing
    was done. `OSError` E2BIG after `LAYERS_MAX` domains.
    """
    version = abi()
    if version == 0:
        return 0
    ruleset = _ruleset(rights(version), scopes(version))
    try:
        for paths, granted in ((read_only, read_rights), (writable, write_rights)):
            for path in paths:
                _grant(ruleset, path, granted(version))
        _restrict(ruleset)
    finally:
        os.close(ruleset)
    return version


def separate() -> bool:
    """Withhold every process outside of this one and its children: signals, abstract sockets.

    Reading their memory and tracing them goes too, as it does into every domain that is not nested
    in ours. What is nested in ours stays in reach: after a fork, a child that separates is safe
    from its siblings, but from its parent only when that separates as well. False where this
    kernel (before 6.12) cannot, or where this process is in `LAYERS_MAX` domains already; then
    nothing was done. Needs no_new_privs.
    """
    confined = scopes(abi())
    if confined == 0:
        return False
    ruleset = _ruleset(0, confined)
    try:
        _restrict(ruleset)
    except OSError as error:
        if error.errno != errno.E2BIG:
            raise
        return False
    finally:
        os.close(ruleset)
    return True


def _ruleset(files: int, confined: int) -> int:
    # Older kernels take the longer structure as long as what they do not know of is zero.
    attributes = ctypes.create_string_buffer(struct.pack("=QQQ", files, 0, confined), 24)
    fd = kernel.system_call(_CREATE, ctypes.addressof(attributes), len(attributes), 0)
    return kernel.check(fd, "landlock_create_ruleset")


def _grant(ruleset: int, path: str, granted: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            granted &= _OF_FILES
        rule = ctypes.create_string_buffer(struct.pack("=Qi", granted, fd), 12)
        added = kernel.system_call(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.addressof(rule), 0)
        kernel.check(added, f"landlock_add_rule {path}")
    finally:
        os.close(fd)


def _restrict(ruleset: int) -> None:
    kernel.check(kernel.system_call(_RESTRICT, ruleset, 0), "landlock_restrict_self")
