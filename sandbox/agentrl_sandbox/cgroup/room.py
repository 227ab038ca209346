"""Memory that is left: of the machine, and of every cgroup that we run in."""

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from agentrl_sandbox.cgroup.group import field
from agentrl_sandbox.cgroup.place import Version, find_own_cgroup

NO_LIMIT_BYTES = 2**60
"""More than any machine has. v1 writes `no limit` as a number of this kind."""
_LIMIT = {1: "memory.limit_in_bytes", 2: "memory.max"}
_USED = {1: "memory.usage_in_bytes", 2: "memory.current"}


def available_bytes() -> int:
    """Return the memory that can be taken without anything being killed for it."""
    rooms = [_machine_bytes("MemAvailable")]
    for version, directory in _levels():
        if (limit_bytes := _limit_bytes(version, directory)) < NO_LIMIT_BYTES:
            used_bytes = int(Path(directory, _USED[version]).read_text())
            rooms.append(
                room_bytes(limit_bytes, used_bytes, Path(directory, "memory.stat").read_text())
            )
    return min(rooms)


def total_bytes() -> int:
    """Return the memory there is for us."""
    limits = [_limit_bytes(version, directory) for version, directory in _levels()]
    return min(_machine_bytes("MemTotal"), *limits, NO_LIMIT_BYTES)


def processes_max() -> int:
    """Return the number of processes and threads that the machine can have."""
    names = ("pid_max", "threads-max")
    return min(int(Path("/proc/sys/kernel", name).read_text()) for name in names)


def limit_bytes_of(text: str) -> int:
    """Read a file with a limit: a number, or `max`."""
    return NO_LIMIT_BYTES if text.strip() == "max" else min(int(text), NO_LIMIT_BYTES)


def room_bytes(limit_bytes: int, used_bytes: int, stat: str) -> int:
    """Return the unused bytes of a limit, given memory.stat: pages of idle files can be dropped."""
    idle_bytes = field(stat, "total_inactive_file") or field(stat, "inactive_file")
    return max(0, limit_bytes - max(0, used_bytes - idle_bytes))


def _limit_bytes(version: Version, directory: str) -> int:
    try:
        return limit_bytes_of(Path(directory, _LIMIT[version]).read_text())
    except FileNotFoundError:  # the root of v2 has no limit
        return NO_LIMIT_BYTES


def _machine_bytes(name: str) -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        key, _, amount = line.partition(":")
        if key == name:
            return int(amount.split()[0]) * 1024
    return NO_LIMIT_BYTES


@cache
def _levels() -> Sequence[tuple[Version, str]]:
    """Return the cgroups we run in, innermost first, as far up as they can be seen."""
    if (place := find_own_cgroup()) is None:
        return ()
    directory, levels = place.directories["memory"], list[tuple[Version, str]]()
    while os.path.exists(f"{directory}/cgroup.procs"):
        levels.append((place.version, directory))
        directory = os.path.dirname(directory)
    return levels
