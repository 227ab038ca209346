"""Finds, from outside, the processes behind a session, for somebody who means to kill them."""

import os
from contextlib import suppress
from pathlib import Path

from agentrl_sandbox import SandboxSession
from agentrl_sandbox.inside.processes import parents
from agentrl_sandbox.reaping.owner import start_ticks

WHO = """
import os
(os.getppid(), os.stat('/proc/self/ns/pid').st_ino)
"""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


async def keeper_of(session: SandboxSession, *, isolated: bool) -> int | None:
    """Return the process id, here, of a session's keeper; None when it cannot be seen from here."""
    result = await session.exec(WHO)
    if result.value is None:
        return None
    parent, namespace = map(int, result.value.strip("()").split(","))
    if not isolated:
        return parent if runs_agentrl(parent) else None
    for pid in parents():
        with suppress(OSError):
            if os.readlink(f"/proc/{pid}/ns/pid") == f"pid:[{namespace}]" and _is_first(pid):
                return pid
    return None


def _is_first(pid: int) -> bool:
    """Say whether it is number 1 in a namespace below others."""
    for line in Path("/proc", str(pid), "status").read_text().splitlines():
        if line.startswith("NSpid:"):
            numbers = line.split()[1:]
            return len(numbers) > 1 and numbers[-1] == "1"
    return False


def parent(pid: int) -> int:
    """Return a process's parent, 0 when there is no such process."""
    return parents().get(pid, 0)


def children(pid: int) -> list[int]:
    """Return the living processes directly below another one.

    A keeper reaps those it has given up on with the next end of something, so dead ones may wait.
    """
    below = [child for child, up in parents().items() if up == pid]
    return [child for child in below if start_ticks(child) is not None]


def runs_agentrl(pid: int) -> bool:
    """Say whether it is one of ours: nothing else is ever killed."""
    try:
        line = Path("/proc", str(pid), "cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return b"agentrl" in line or b"inside.zip" in line


def cpu_s(pid: int) -> float:
    """Return the processor time a process has used, 0 when it is gone."""
    try:
        fields = Path("/proc", str(pid), "stat").read_text().rpartition(") ")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
