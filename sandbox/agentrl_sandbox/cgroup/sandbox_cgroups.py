"""Cgroups around a supervisor and each of its sessions, where this machine permits them.

Making a cgroup and moving processes can wait for the kernel, so both happen beside the session's
first cells, never before them: what it holds until then counts for the pool.
"""

import asyncio
import contextlib
import itertools
from functools import partial
from typing import Self

from agentrl.runtime.memory_limit import total_bytes
from agentrl.runtime.threads import make_in_thread, run_in_thread
from agentrl.sandbox import Limits, SandboxSettings
from agentrl_sandbox.cgroup import (
    CgroupLimits,
    CgroupRoot,
    ProcessCgroup,
    host_pid,
    pool_bounds,
    processes_max,
    session_bounds,
)


class SessionCgroup:
    """The cgroup of one opened session and its forks, once it is there."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._group: ProcessCgroup | None = None
        self._killed = 0
        self._over = asyncio.Event()

    def was_short_of_memory(self) -> bool:
        """Return whether the kernel killed something for want of memory since the last call."""
        if self._group is None:
            return False
        with contextlib.suppress(OSError):
            before, self._killed = self._killed, self._group.oom_kills()
            return self._killed > before
        return False

    def resize(self, members: int) -> None:
        """Bound so many sessions: the opened one and its live forks."""
        if self._group is not None and members > 0:
            with contextlib.suppress(OSError):  # less than is in use now
                self._group.limit(session_bounds(self._limits, members=members))

    def close(self) -> None:
        """Have it removed."""
        self._over.set()

    async def live(self, pool: ProcessCgroup, name: str, pid: int) -> None:
        """Make it, put a keeper and all below it inside, and remove it in the end."""
        group = None
        try:
            make = partial(_make_around, pool, name, session_bounds(self._limits), pid)
            self._group = group = await make_in_thread(make, ProcessCgroup.remove)
            await self._over.wait()
        except OSError:
            await self._over.wait()  # the pool's own bounds hold
        finally:
            self._group = None
            if group is not None:
                await asyncio.shield(run_in_thread(group.remove))


def _make_around(pool: ProcessCgroup, name: str, bounds: CgroupLimits, pid: int) -> ProcessCgroup:
    """Make a cgroup inside a pool's and move a process with all below it in, unless it ended."""
    group = pool.make(name, bounds)
    try:
        with contextlib.suppress(ProcessLookupError):
            group.add_tree(pid)
    except BaseException:
        group.remove()
        raise
    return group


class PoolCgroup:
    """The cgroup of a supervisor, and of what it opens."""

    def __init__(self, group: ProcessCgroup, limits: Limits) -> None:
        self._group = group
        self._limits = limits
        self._numbers = itertools.count(1)
        self._sessions: dict[SessionCgroup, asyncio.Task[None]] = {}

    @classmethod
    async def around(cls, pid: int, settings: SandboxSettings) -> Self | None:
        """Put a supervisor that has opened nothing yet inside; None where that is not permitted."""
        pressure = settings.pressure
        bounds = pool_bounds(
            settings.limits,
            sessions=-(-pressure.sessions // settings.supervisors),
            total_bytes=total_bytes(),
            free_memory_bytes=pressure.free_memory_bytes,
            processes_max=processes_max(),
        )
        cgroups = await run_in_thread(CgroupRoot.find)
        if cgroups is None:
            return None
        try:
            group = await make_in_thread(
                partial(cgroups.make, "pool", bounds), ProcessCgroup.remove
            )
        except OSError:
            return None
        try:
            await run_in_thread(group.add_tree, pid)
        except ProcessLookupError:
            pass  # it died, which its socket tells better
        except BaseException:
            await asyncio.shield(run_in_thread(group.remove))
            raise
        return cls(group, settings.limits)

    def session(self, pidfd: int) -> SessionCgroup:
        """Put an opened session inside a cgroup of its own, given its keeper."""
        fence = SessionCgroup(self._limits)
        with contextlib.suppress(ProcessLookupError):
            name = f"session-{next(self._numbers)}"
            task = asyncio.create_task(fence.live(self._group, name, host_pid(pidfd)))
            self._sessions[fence] = task
            task.add_done_callback(lambda _: self._sessions.pop(fence, None))
        return fence

    async def close(self) -> None:
        """Remove everything; the supervisor has ended."""
        for fence in list(self._sessions):
            fence.close()
        await asyncio.gather(*self._sessions.values(), return_exceptions=True)
        await run_in_thread(self._group.remove)
