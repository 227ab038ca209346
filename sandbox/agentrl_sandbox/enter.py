"""Runs between the host and bubblewrap, as a script: gives up root, then becomes bubblewrap.

Bubblewrap started by real root would leave files of root under /proc/sys writable from inside, and
the kernel exempts root from the limit on processes. So root becomes a user id that nobody has. That
user may be unable to reach the interpreter (below a home directory, say), so the interpreter's
directories are first bound where it can, in a mount namespace of our own.

Standard library only, and no import of agentrl: it runs with `-I -S`.
"""

import ctypes
import json
import os
import resource
import sys
from typing import Any

_CLONE_NEWNS = 0x20000
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000
STAGE = "/tmp"
"""Covered with a tmpfs that only this process and its children see."""


def _check(result: int, what: str) -> None:
    if result != 0:
        sys.exit(f"{what}: {os.strerror(ctypes.get_errno())}")


def stage(directories: dict[str, str]) -> None:
    """Bind each directory, given by its name below the stage, where every user can reach it."""
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.unshare(_CLONE_NEWNS), "unshare the mount namespace")
    _check(libc.mount(b"none", b"/", None, _MS_PRIVATE | _MS_REC, None), "make mounts private")
    opened = {name: os.open(path, os.O_PATH) for name, path in directories.items()}
    _check(libc.mount(b"stage", STAGE.encode(), b"tmpfs", 0, b"mode=755,size=64k"), "mount a stage")
    for name, fd in opened.items():
        target = f"{STAGE}/{name}"
        os.mkdir(target, 0o755)
        source = f"/proc/self/fd/{fd}".encode()
        _check(libc.mount(source, target.encode(), None, _MS_BIND | _MS_REC, None), target)
        os.close(fd)


def become(user_id: int) -> None:
    """Become a user without a name, a group or a right."""
    os.setgroups([])
    os.setresgid(user_id, user_id, user_id)
    os.setresuid(user_id, user_id, user_id)


def main(plan: dict[str, Any]) -> None:
    """Do what the plan says and become its command."""
    os.umask(0o077)
    os.chdir("/")
    # Opened now: it may be out of reach for the user we become.
    program = os.open(plan["command"][0], os.O_RDONLY)
    os.set_inheritable(program, True)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if plan["user_id"] is not None:
        stage(plan["stage"])
        become(plan["user_id"])
    os.execve(program, plan["command"], {})


if __name__ == "__main__":
    with open(int(sys.argv[1]), "rb") as file:
        main(json.load(file))
