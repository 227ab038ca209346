"""Memory that is left: of the machine, and of every cgroup that we run in."""

from pathlib import Path

from agentrl.runtime.memory_limit import NO_LIMIT_BYTES, cgroup_levels, read_limit_bytes
from agentrl_sandbox.cgroup.group import field
from agentrl_sandbox.inside.processes import read_proc_file

_USED = {1: "memory.usage_in_bytes", 2: "memory.current"}


def available_bytes() -> int:
    """Return the memory that can be taken without anything being killed for it."""
    rooms = [_available_machine_bytes()]
    for version, directory in cgroup_levels():
        if (limit_bytes := read_limit_bytes(version, directory)) < NO_LIMIT_BYTES:
            used_bytes = int(Path(directory, _USED[version]).read_text())
            rooms.append(
                room_bytes(limit_bytes, used_bytes, Path(directory, "memory.stat").read_text())
            )
    return min(rooms)


def processes_max() -> int:
    """Return the number of processes and threads that the machine can have."""
    names = ("pid_max", "threads-max")
    return min(int(Path("/proc/sys/kernel", name).read_text()) for name in names)


def room_bytes(limit_bytes: int, used_bytes: int, stat: str) -> int:
    """Return the unused bytes of a limit, given memory.stat: pages of idle files can be dropped."""
    idle_bytes = field(stat, "total_inactive_file") or field(stat, "inactive_file")
    return max(0, limit_bytes - max(0, used_bytes - idle_bytes))


def _available_machine_bytes() -> int:
    for line in read_proc_file("/proc/meminfo").splitlines():
        key, _, amount = line.partition(":")
        if key == "MemAvailable":
            return int(amount.split()[0]) * 1024
    return NO_LIMIT_BYTES
