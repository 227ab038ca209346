"""The processes of a browser, where no cgroup counts what they hold."""

import os
from collections.abc import Iterator
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def measure_private_bytes(mark: str, root: int | None = None) -> int:
    """Return the memory that the processes from the one with `mark` down share with nobody.

    It is looked for below `root`, by default this process. 0 where it is not there.
    """
    for pid in list_descendants(os.getpid() if root is None else root):
        if _has_mark(pid, mark.encode()):
            return sum(map(_measure_private_bytes, (pid, *list_descendants(pid))))
    return 0


def list_descendants(pid: int) -> Iterator[int]:
    """Yield the processes that come from a process, parents first."""
    for child in _list_children(pid):
        yield child
        yield from list_descendants(child)


def _list_children(pid: int) -> list[int]:
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []  # it has ended meanwhile
    pids: list[int] = []
    for task in tasks:
        try:
            pids += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
        except OSError:
            continue
    return pids


def _has_mark(pid: int, mark: bytes) -> bool:
    for file in ("cmdline", "environ"):
        try:
            if mark in Path(f"/proc/{pid}/{file}").read_bytes():
                return True
        except OSError:
            continue
    return False


def _measure_private_bytes(pid: int) -> int:
    try:
        _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * _PAGE_BYTES
