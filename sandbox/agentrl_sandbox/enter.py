"""Gives up root. As a script it runs between the host and bubblewrap, and becomes that.

A sandbox made by real root would leave files of root under /proc/sys writable from inside, and
the kernel exempts root from the limit on processes. So root becomes a user id that nobody has. That
user may be unable to reach the interpreter (below a home directory, say), so the interpreter's
directories are first bound where it can, in a mount namespace of our own.

Where this machine permits it, the sandbox gets a user namespace that maps a run of ids, one for
every session, and not only that of the supervisor. Such a map is written from outside: by root, or
by the set-user-id programs newuidmap and newgidmap, which know what a user may have.

Standard library only, and no import of agentrl: it runs with `-I -S`.
"""

import contextlib
import ctypes
import json
import os
import resource
import stat
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

_CLONE_NEWNS, _CLONE_NEWUSER = 0x20000, 0x10000000
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000
STAGE = "/tmp"
"""Covered with a tmpfs that only this process and its children see."""
_OOM_SCORE = "500"
"""When the machine runs out of memory, sandboxes go before the trainer. Nobody inside gets below
what root set."""


def _check(result: int, what: str) -> None:
    if result != 0:
        sys.exit(f"{what}: {os.strerror(ctypes.get_errno())}")


def stage(paths: dict[str, str]) -> None:
    """Bind each directory or file, by its name below the stage, where every user can reach it."""
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.unshare(_CLONE_NEWNS), "unshare the mount namespace")
    _check(libc.mount(b"none", b"/", None, _MS_PRIVATE | _MS_REC, None), "make mounts private")
    opened = {name: os.open(path, os.O_PATH) for name, path in paths.items()}
    _check(libc.mount(b"stage", STAGE.encode(), b"tmpfs", 0, b"mode=755,size=64k"), "mount a stage")
    for name, fd in opened.items():
        target = f"{STAGE}/{name}"
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            os.mkdir(target, 0o755)
        else:
            os.close(os.open(target, os.O_CREAT | os.O_EXCL, 0o644))
        source = f"/proc/self/fd/{fd}".encode()
        _check(libc.mount(source, target.encode(), None, _MS_BIND | _MS_REC, None), target)
        os.close(fd)


def become(user_id: int) -> None:
    """Become a user without a name, a group or a right."""
    os.setgroups([])
    os.setresgid(user_id, user_id, user_id)
    os.setresuid(user_id, user_id, user_id)


def namespace(user_id: int | None, users: dict[str, Any]) -> int | None:
    """Return a user namespace of this user that maps these ids; None where that is refused."""
    ready, release = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(release[1])
        _hold(user_id, ready[1], release[0])
    os.close(ready[1])
    os.close(release[0])
    try:
        if os.read(ready[0], 1) and all(_map(pid, kind, users) for kind in ("uid", "gid")):
            return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY)
        return None
    finally:
        os.close(ready[0])
        os.close(release[1])
        os.waitpid(pid, 0)


def _hold(user_id: int | None, ready: int, release: int) -> NoReturn:
    """Be in a new user namespace until the other side lets go."""
    try:
        if user_id is not None:
            become(user_id)
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(_CLONE_NEWUSER) == 0:
            os.write(ready, b"y")
            os.read(release, 1)
    finally:
        os._exit(0)


def _map(pid: int, kind: str, users: dict[str, Any]) -> bool:
    extents = users[kind]
    if program := users["programs"].get(kind):
        numbers = [str(number) for extent in extents for number in extent]
        writer = os.posix_spawn(program, [program, str(pid), *numbers], {})
        return os.waitstatus_to_exitcode(os.waitpid(writer, 0)[1]) == 0
    return write_map(pid, kind, extents)


def write_map(pid: int, kind: str, extents: Sequence[Sequence[int]]) -> bool:
    """Write the map of `uid` or `gid` of a process's user namespace; whether it was permitted."""
    lines = [" ".join(map(str, extent)) for extent in extents]
    try:
        # At once: the kernel takes only one write.
        with open(f"/proc/{pid}/{kind}_map", "wb", buffering=0) as file:
            file.write("\n".join(lines).encode())
    except OSError:
        return False
    return True


def give_up_root(plan: dict[str, Any]) -> int | None:
    """Become the user of the plan, if it names one.

    Returns the user namespace that maps the ids of the plan; None where there are none, or where
    that is refused.
    """
    os.umask(0o077)
    os.chdir("/")
    # Refused where we are to go even earlier.
    with contextlib.suppress(PermissionError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(_OOM_SCORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    user_id, users = plan["user_id"], plan["users"]
    userns_fd = None if users is None else namespace(user_id, users)
    if user_id is not None:
        stage(plan["stage"])
        become(user_id)
    return userns_fd


def main(plan: dict[str, Any]) -> None:
    """Do what the plan says and become its command."""
    # Opened now: it may be out of reach for the user we become.
    program = os.open(plan["program"], os.O_RDONLY)
    os.set_inheritable(program, True)
    userns_fd = give_up_root(plan)
    userns_options = ["--unshare-user"]
    if userns_fd is not None:
        os.set_inheritable(userns_fd, True)
        userns_options = ["--userns", str(userns_fd)]
    os.execve(program, [plan["program"], *userns_options, *plan["options"]], {})


if __name__ == "__main__":
    with open(int(sys.argv[1]), "rb") as file:
        main(json.load(file))
