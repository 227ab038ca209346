"""Ending a session's processes: all of them, also those that fled by a double fork.

The trick: an interpreter adopts its orphans (a child subreaper) and the keeper adopts the
interpreter's. So whatever is directly under the keeper and is no known interpreter is left over
from a dead one.
"""

import os
import select
import signal
import time
from collections.abc import Collection, Mapping
from resource import struct_rusage

EVERYBODY = -1
"""To the first process of a namespace: all others in it."""
KILL_S = 5.0
"""Deadline for the kernel to end a killed process."""
_THREAD_POLL_S = 0.001


def parents() -> dict[int, int]:
    """Return the parent of every process that can be seen."""
    table: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        try:
            stat = read_proc_file(f"/proc/{name}/stat")
            table[int(name)] = int(stat.rpartition(") ")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
    return table


def read_proc_file(path: str) -> str:
    """Return the first 4 KiB of a file of /proc."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 2**12).decode(errors="replace")
    finally:
        os.close(fd)


def descendants(root: int) -> set[int]:
    """Return the processes below `root`, without it."""
    return find_below(root, parents())


def find_below(root: int, table: Mapping[int, int]) -> set[int]:
    """Return the processes below `root`, without it, given the parent of each."""
    pids: set[int] = set()
    frontier = {root}
    while frontier:
        frontier = {pid for pid, parent in table.items() if parent in frontier} - pids
        pids |= frontier
    return pids


def count_threads(pid: int) -> int:
    """Return the number of threads of a process, 0 when it is gone."""
    try:
        return len(os.listdir(f"/proc/{pid}/task"))
    except (FileNotFoundError, ProcessLookupError):
        return 0


def count_lasting_threads(pid: int, *, within_s: float) -> int:
    """Return the number of threads of a process once all but one ended or `within_s` passed.

    A thread that Python has joined is still listed until the kernel has ended it.
    """
    deadline_s = time.monotonic() + within_s
    while (count := count_threads(pid)) > 1 and time.monotonic() < deadline_s:
        time.sleep(_THREAD_POLL_S)
    return count


def read_userns(pid: int) -> int:
    """Return the user namespace of a process, 0 when it is gone."""
    return _namespace(pid, "user")


def read_mntns(pid: int) -> int:
    """Return the mount namespace of a process, 0 when it is gone."""
    return _namespace(pid, "mnt")


def _namespace(pid: int, kind: str) -> int:
    try:
        return os.stat(f"/proc/{pid}/ns/{kind}").st_ino
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0


def kill(pid: int) -> None:
    """Send SIGKILL, if there is somebody to get it."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def poll_end(pidfd: int, *, within_s: float) -> bool:
    """Return whether a process ends within some time."""
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(within_s * 1000))


def wait_end(pid: int, pidfd: int) -> tuple[int | None, struct_rusage | None]:
    """Wait for the end of a process; its wait status and usage, None when it is not our child."""
    if not poll_end(pidfd, within_s=KILL_S):
        raise TimeoutError(f"process {pid} survived SIGKILL for {KILL_S} s")
    try:
        # It is dead. Who would still have to be waited for is another one with its number.
        child_pid, status, usage = os.wait4(pid, os.WNOHANG)
    except ChildProcessError:
        return None, None
    return (status, usage) if child_pid else (None, None)


def find_dead_child() -> int:
    """Return a child that has ended and still has to be waited for, 0 where there is none."""
    try:
        status = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return 0
    return 0 if status is None else status.si_pid


def end_strays(known: Collection[int], worlds: Collection[int] | None = None) -> None:
    """Kill and reap our children that are not `known`, until none is left.

    With `worlds` only those that live in one of these user namespaces, and those that are dead.
    """
    deadline_s = time.monotonic() + KILL_S
    while strays := _strays(known, worlds):
        for pid in strays:
            kill(pid)
        for pid in strays:
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                continue
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"processes {strays} survived SIGKILL for {KILL_S} s")


def _strays(known: Collection[int], worlds: Collection[int] | None) -> list[int]:
    children = [p for p, up in parents().items() if up == os.getpid() and p not in known]
    if worlds is None:
        return children
    dead = 0  # its namespaces went before it
    return [pid for pid in children if read_userns(pid) in (dead, *worlds)]
