"""Processes, looked at from tests. Any of them may end meanwhile: then it is not there."""

import sys
from pathlib import Path

from agentrl_sandbox.inside.processes import descendants, parents


def children(pid: int) -> list[int]:
    """Return the processes that a process has started and nobody has waited for."""
    return [child for child, above in parents().items() if above == pid]


def family(pid: int) -> list[int]:
    """Return a process and all below it."""
    return [pid, *descendants(pid)]


def parent_of(pid: int) -> int:
    """Return the parent of a process, 0 where there is none."""
    return parents().get(pid, 0)


def runs(pid: int) -> bool:
    """Return whether a process is there and has not ended; a zombie has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def command_line(pid: int) -> bytes:
    """Return what a process runs, its parts ended by NUL; nothing of one that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def find_processes(words: str) -> list[int]:
    """Return the processes, other than Python's, whose command line has some words."""
    return [
        pid
        for pid in parents()
        if words in (line := command_line(pid).replace(b"\0", b" ").decode(errors="replace"))
        and not line.startswith(sys.executable)
    ]
