"""Enters a container without an engine: runs a command in it, or unpacks or packs an archive.

A command is confined before it is run, as everything inside is. Archives are handled outside of the
container's processes, where nothing of its files but archives is read: no module, no library.
"""

import importlib.machinery
import io
import os
import resource
import signal
import sys
import tarfile
from typing import Any, NoReturn

from agentrl_sandbox.contain import keeper
from agentrl_sandbox.inside import kernel

NOT_FOUND, TOO_LARGE, NO_FOLDER = 3, 4, 5
"""Exit codes of a visit for an archive."""
_ALL = (
    kernel.CLONE_NEWUSER
    | kernel.CLONE_NEWNS
    | kernel.CLONE_NEWPID
    | kernel.CLONE_NEWNET
    | kernel.CLONE_NEWIPC
    | kernel.CLONE_NEWUTS
)
_ARCHIVE_S = 120
_OOM_SCORE = "500"


def main() -> NoReturn:
    """Do what the plan says."""
    plan = keeper.read_plan()
    if plan["action"] == "exec":
        _execute(plan)
    _enter_files(plan["keeper"])
    sys.exit(_put(plan) if plan["action"] == "put" else _get(plan))


# -- commands -------------------------------------------------------------------------------------


def _execute(plan: dict[str, Any]) -> NoReturn:
    for path in plan["cgroups"]:
        with open(path, "w") as file:
            file.write("0")
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write(_OOM_SCORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    kernel.join(plan["init"], _ALL)
    os.close(plan["init"])
    pid = os.fork()
    if pid == 0:
        kernel.die_with_parent(signal.SIGKILL)
        _become_command(plan)
    kernel.set_dumpable(False)
    os.closerange(0, os.sysconf("SC_OPEN_MAX"))
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os._exit(code if code >= 0 else 128 - code)


def _become_command(plan: dict[str, Any]) -> NoReturn:
    code = 126
    try:
        kernel.set_dumpable(False)
        os.setsid()
        uid, gid, groups, home = find_user(plan["user"])
        env = {"HOME": home, **plan["env"]}
        os.chdir(plan["cwd"] or "/")
        os.umask(0o022)
        kernel.forbid_new_privileges()
        kernel.leave_keyring()
        kernel.drop_capabilities(keep=keeper.CAPABILITIES)
        os.setgroups(groups)
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        kernel.install_filter(bytes.fromhex(plan["filter"]))
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        code = 127
        os.execvpe(plan["argv"][0], plan["argv"], env)
    except (OSError, ValueError) as error:
        os.write(2, f"{error}\n".encode())
    finally:
        os._exit(code)


def find_user(user: str) -> tuple[int, int, list[int], str]:
    """Return ids, groups and home of `name`, `number` or either with `:group`.

    The files of the container are read as text: no library of it is loaded. `ValueError` for a name
    that is not there.
    """
    name, _, group = user.partition(":")
    name = name or "0"
    rows = _read_rows("/etc/passwd")
    row = next((r for r in rows if len(r) > 5 and name in (r[0], r[2])), None)
    if row is None and not name.isdecimal():
        raise ValueError(f"there is no user {name!r} in /etc/passwd")
    uid = int(row[2] if row else name)
    gid = int(row[3]) if row else 0
    all_groups = [r for r in _read_rows("/etc/group") if len(r) > 3]
    if group:
        row_of_group = next((r for r in all_groups if group in (r[0], r[2])), None)
        if row_of_group is None and not group.isdecimal():
            raise ValueError(f"there is no group {group!r} in /etc/group")
        return uid, int(row_of_group[2] if row_of_group else group), [], row[5] if row else "/"
    groups = [int(r[2]) for r in all_groups if row and row[0] in r[3].split(",")]
    return uid, gid, groups, row[5] if row else "/"


def _read_rows(path: str) -> list[list[str]]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return [line.rstrip("\n").split(":") for line in file]
    except OSError:
        return []


# -- archives -------------------------------------------------------------------------------------


def _enter_files(keeper_pid: int) -> None:
    """Make the container's files the root, with every module loaded before."""
    with open(f"/proc/{keeper_pid}/ns/mnt") as mounts, open(f"/proc/{keeper_pid}/ns/user") as users:
        # Nothing of the container is imported, and no library of it looks names up.
        sys.meta_path[:] = [importlib.machinery.BuiltinImporter, importlib.machinery.FrozenImporter]
        tarfile.pwd = tarfile.grp = None  # type: ignore[attr-defined]
        kernel.join(mounts.fileno(), kernel.CLONE_NEWNS)
        os.chroot(keeper.ROOT)
        os.chdir("/")
        keeper.enter_users(users.fileno())
    kernel.die_with_parent(signal.SIGKILL)  # of whom a change of the user id makes us forget
    os.umask(0o022)
    signal.alarm(_ARCHIVE_S)


def _put(plan: dict[str, Any]) -> int:
    if not os.path.isdir(plan["path"]):
        return NO_FOLDER
    with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as archive:
        for member in archive:
            if member.isdir() and os.path.isdir(os.path.join(plan["path"], member.name)):
                archive.extract(member, plan["path"], numeric_owner=True)
                continue
            path = os.path.join(plan["path"], member.name)
            if os.path.lexists(path) and not os.path.isdir(path):
                os.unlink(path)
            archive.extract(member, plan["path"], numeric_owner=True)
    return 0


def _get(plan: dict[str, Any]) -> int:
    path = plan["path"].rstrip("/") or "/"
    if not os.path.lexists(path):
        return NOT_FOUND
    writer = _BoundedWriter(plan["max_bytes"])
    try:
        with tarfile.open(fileobj=writer, mode="w|", format=tarfile.PAX_FORMAT) as archive:
            archive.add(path, arcname=os.path.basename(path) or ".")
    except BufferError:
        return TOO_LARGE
    return 0


class _BoundedWriter(io.RawIOBase):
    def __init__(self, max_bytes: int) -> None:
        super().__init__()
        self._left = max_bytes

    def write(self, data: Any) -> int:
        self._left -= len(data)
        if self._left < 0:
            raise BufferError
        return sys.stdout.buffer.write(data)


if __name__ == "__main__":
    main()
