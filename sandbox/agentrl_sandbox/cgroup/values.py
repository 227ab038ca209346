"""Values written into a cgroup's files for a limit, and the limits of a session and a pool."""

from dataclasses import dataclass

from agentrl.runtime.cgroup_place import Version
from agentrl.sandbox import Limits

KEEPER_BYTES = 32 * 2**20
"""Memory that the keeper of a session may hold besides that of its interpreters."""
KEEPER_PROCESSES = 8
"""The keeper, and the processes that it forks in between."""
SUPERVISOR_BYTES = 256 * 2**20
SUPERVISOR_PROCESSES = 64
"""The supervisor, and the sessions it has ready."""
_PERIOD_US = 100_000
_SOCKETS_SHARE = 4
"""One part in so many of the memory is what buffers of sockets may hold beside it, with v1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupLimits:
    """Limits of one cgroup; None is no limit."""

    memory_bytes: int | None = None
    processes: int | None = None
    """Threads count, as the kernel counts them."""
    cpus: float | None = None
    """Number of cores that it may keep busy."""


@dataclass(frozen=True, slots=True)
class ControllerValue:
    """A file of a controller, and what to write into it."""

    controller: str
    file: str
    text: str
    optional: bool = False
    """Kernels without swap accounting, or without this kind of counting, lack the file."""


def values(version: Version, bounds: CgroupLimits) -> tuple[ControllerValue, ...]:
    """Return the values to write for some bounds, in this order."""
    files: list[ControllerValue] = []
    if (memory_bytes := bounds.memory_bytes) is not None:
        amount, sockets = f"{memory_bytes}", f"{memory_bytes // _SOCKETS_SHARE}"
        if version == 1:
            files += (
                ControllerValue("memory", "memory.limit_in_bytes", amount),
                ControllerValue("memory", "memory.memsw.limit_in_bytes", amount, optional=True),
                # Of UDP too: v1 counts buffers apart, and only where they are limited.
                ControllerValue("memory", "memory.kmem.tcp.limit_in_bytes", sockets, optional=True),
            )
        else:
            files += (
                ControllerValue("memory", "memory.max", amount),
                ControllerValue("memory", "memory.swap.max", "0", optional=True),
            )
    if bounds.processes is not None:
        files.append(ControllerValue("pids", "pids.max", f"{bounds.processes}"))
    if bounds.cpus is not None:
        quota = f"{round(bounds.cpus * _PERIOD_US)}"
        if version == 1:
            files.append(ControllerValue("cpu", "cpu.cfs_period_us", f"{_PERIOD_US}"))
            files.append(ControllerValue("cpu", "cpu.cfs_quota_us", quota))
        else:
            files.append(ControllerValue("cpu", "cpu.max", f"{quota} {_PERIOD_US}"))
    return tuple(files)


def session_bounds(limits: Limits, *, members: int = 1) -> CgroupLimits:
    """Return the bounds of an opened session and its live forks, `members` in all.

    A session's files live in memory and are charged to it, so they come on top.
    """
    return CgroupLimits(
        memory_bytes=members * (limits.memory_bytes + limits.disk_bytes) + KEEPER_BYTES,
        processes=members * (limits.processes + 1) + KEEPER_PROCESSES,
    )


def pool_bounds(
    limits: Limits, *, sessions: int, total_bytes: int, free_memory_bytes: int, processes_max: int
) -> CgroupLimits:
    """Return the bounds of a pool: room for all its sessions, and never the whole machine.

    `total_bytes` and `processes_max` are what the machine, or the cgroup we run in, has. Whatever
    is asked for, `free_memory_bytes` (at most half of it all) and half of the processes stay.
    """
    one = session_bounds(limits)
    assert one.memory_bytes is not None
    assert one.processes is not None
    spare_bytes = min(free_memory_bytes, total_bytes // 2)
    return CgroupLimits(
        memory_bytes=min(sessions * one.memory_bytes + SUPERVISOR_BYTES, total_bytes - spare_bytes),
        processes=min(sessions * one.processes + SUPERVISOR_PROCESSES, processes_max // 2),
    )
