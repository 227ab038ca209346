"""Owner of a resource: a process, named so that no other process can be taken for it."""

import os
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self

_STAT_STATE, STAT_PARENT, _STAT_START = 0, 1, 19
"""Places in /proc/PID/stat, counted after the command's closing parenthesis."""
_TEXT = re.compile(r"(?<![0-9])([0-9]{1,20})-([0-9]{1,20})-([0-9a-f]{8})-([0-9a-f]+)")


@dataclass(frozen=True, slots=True)
class PidNamespace:
    """Scope of a process id: one boot of a machine, one namespace of processes."""

    boot: str
    """The first eight digits of the kernel's boot id."""
    namespace: str
    """The inode of the process namespace, in hexadecimal."""

    @classmethod
    def current(cls) -> Self:
        """Return the world this process lives in."""
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
        return cls(boot, f"{os.stat('/proc/self/ns/pid').st_ino:x}")


@dataclass(frozen=True, slots=True)
class LeaseOwner:
    """A process of some world. Its start time tells it from a later one of the same id."""

    pid: int
    start_ticks: int
    """Clock ticks from boot to its start, as /proc/PID/stat has them."""
    world: PidNamespace

    @classmethod
    def current(cls) -> Self:
        """Return this process."""
        return cls(*_me(os.getpid()))

    @property
    def text(self) -> str:
        """Return it in one word that fits a label, an environment and a file's name."""
        return f"{self.pid}-{self.start_ticks}-{self.world.boot}-{self.world.namespace}"

    @classmethod
    def find(cls, text: str) -> Self | None:
        """Return the first owner written in a text, or None."""
        if (match := _TEXT.search(text)) is None:
            return None
        pid, start_ticks, boot, namespace = match.groups()
        return cls(int(pid), int(start_ticks), PidNamespace(boot, namespace))

    @property
    def runs(self) -> bool:
        """Whether it is a process of our world that has not ended."""
        return self.world == PidNamespace.current() and start_ticks(self.pid) == self.start_ticks


@cache
def _me(pid: int) -> tuple[int, int, PidNamespace]:
    started = start_ticks(pid)
    assert started is not None, "a process that asks for itself is alive"
    return pid, started, PidNamespace.current()


def start_ticks(pid: int) -> int | None:
    """Return when a process started, None when there is none or it has ended."""
    fields = read_stat(pid)
    return None if not fields or fields[_STAT_STATE] in "ZX" else int(fields[_STAT_START])


def read_stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the command; none when there is no process."""
    try:
        stat = Path("/proc", str(pid), "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return []
    return stat.rpartition(") ")[2].split()
