"""Removing one resource, whatever state it is in. Everything here may be repeated.

A lease is a file, and a file may be wrong: only what carries our name is touched.
"""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from agentrl_sandbox.inside.files import enter_directory, take_apart
from agentrl_sandbox.reaping import engine
from agentrl_sandbox.reaping.owner import STAT_PARENT, read_stat, start_ticks
from agentrl_sandbox.reaping.plan import LeasedResource

MARK = "AGENTRL_LEASE"
"""Variable of the environment by which a leased process and all it starts are found."""
PREFIX = "agentrl-"
"""Prefix of the name of every directory and every cgroup that may be removed."""
CGROUPS = "/sys/fs/cgroup"
_HOMES = ("HOME", "TMPDIR")
_END_S = 15.0
"""Deadline for the kernel to end killed processes, and to let go of their cgroup."""
_EMPTY_S = 60.0
"""Deadline for emptying a directory, for somebody may still be filling it."""
_PAUSE_S = 0.02


class RemovalError(OSError):
    """Something is still there; the text says what and why."""


def remove(resource: LeasedResource) -> bool:
    """Remove a resource; whether anything was there. `OSError` when something is left."""
    match resource.kind:
        case "process":
            return _end(lambda process: process.variable(MARK) == resource.name)
        case "container":
            return _remove_containers(resource)
        case "cgroup":
            path = _check_name(resource.name)
            if not path.startswith(f"{CGROUPS}/"):
                raise RemovalError(f"{path} is not below {CGROUPS}; delete its lease manually")
            return remove_cgroup(path, _END_S)
        case "directory":
            return _remove_directory(_check_name(resource.name))


def exists(resource: LeasedResource) -> bool:
    """Return whether a resource is there. `OSError` when that cannot be known."""
    match resource.kind:
        case "process":
            return resource.name in find_marks()
        case "container":
            return "=" not in resource.name or bool(
                engine.containers(resource.engine, resource.name)
            )
        case "cgroup" | "directory":
            return os.path.lexists(resource.name)


def _remove_containers(resource: LeasedResource) -> bool:
    name = resource.name
    if "=" not in name:
        return engine.remove(resource.engine, name)
    containers = engine.containers(resource.engine, name)
    for container in containers:
        engine.remove(resource.engine, container.id)
    return bool(containers)


def _remove_directory(path: str) -> bool:
    archive = f"{path}/inside.zip"

    def lives_there(process: "_Process") -> bool:
        homes = [process.variable(name) or "" for name in _HOMES]
        return archive in process.arguments or any(
            home == path or home.startswith(f"{path}/") for home in homes
        )

    ended = _end(lives_there)
    return _remove_tree(path) or ended


def remove_cgroup(path: str, within_s: float) -> bool:
    """Kill what is in a cgroup, and remove it and those in it; False when it is not there.

    `RemovalError` when it remains after some time.
    """
    if not os.path.isdir(path):
        return False
    deadline_s = time.monotonic() + within_s
    while True:
        groups = [directory for directory, _, _ in os.walk(path, topdown=False)]
        for group in groups:
            with suppress(OSError):  # it is being removed
                for pid in Path(group, "cgroup.procs").read_text().split():
                    _signal(int(pid), None, signal.SIGKILL)
        try:
            for group in groups:
                os.rmdir(group)
        except FileNotFoundError:
            return True
        except OSError as error:
            if time.monotonic() > deadline_s:
                raise RemovalError(f"cgroup {path} remains: {error.strerror}") from error
            time.sleep(_PAUSE_S)
            continue
        return True


def _check_name(name: str) -> str:
    path = os.path.normpath(name)
    if not os.path.isabs(name) or path != name or not os.path.basename(path).startswith(PREFIX):
        raise RemovalError(
            f"{name!r} is not an absolute path whose name starts with {PREFIX}; delete its lease "
            "manually"
        )
    return path


# -- processes ------------------------------------------------------------------------------------


class _Process:
    """A process as /proc shows it; what may not be read is empty."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.arguments = self._read("cmdline")
        self._variables = self._read("environ")

    def _read(self, name: str) -> list[str]:
        try:
            data = Path("/proc", str(self.pid), name).read_bytes()
        except OSError:
            return []
        return data.decode(errors="replace").split("\0")

    def variable(self, name: str) -> str | None:
        """Return a variable of the environment it was started with."""
        start = f"{name}="
        return next((v[len(start) :] for v in self._variables if v.startswith(start)), None)


def find_marks() -> set[str]:
    """Return the marks of leases that processes carry."""
    return {mark for pid in _list_pids() if (mark := _Process(pid).variable(MARK))}


def _list_pids() -> list[int]:
    ours = {os.getpid(), 1}
    return [int(name) for name in os.listdir("/proc") if name.isdecimal() and int(name) not in ours]


def _end(wanted: Callable[[_Process], bool]) -> bool:
    """Kill the processes that are wanted, with all below them, until there is none."""
    any_found = False
    while tree := _freeze(wanted):
        any_found, deadline_s = True, time.monotonic() + _END_S
        for pid, start in tree.items():
            _signal(pid, start, signal.SIGKILL)
        while any(start_ticks(pid) == start for pid, start in tree.items()):
            if time.monotonic() > deadline_s:
                raise RemovalError(f"processes {sorted(tree)} survived SIGKILL for {_END_S:g} s")
            time.sleep(_PAUSE_S)
    return any_found


def _freeze(wanted: Callable[[_Process], bool]) -> dict[int, int]:
    """Stop the processes that are wanted and all below them; return when each began.

    Stopped, none can start another, or lose the mark or the parent that we know it by, while we
    still look for the rest.
    """
    tree: dict[int, int] = {}
    while True:
        # Asked before looking: a process id that is used again meanwhile has another start.
        starts = {pid: start for pid in _list_pids() if (start := start_ticks(pid)) is not None}
        matches = {pid for pid in starts if pid not in tree and wanted(_Process(pid))}
        fresh = _add_descendants(matches | tree.keys()) & starts.keys() - tree.keys()
        if not fresh:
            return tree
        for pid in fresh:
            tree[pid] = starts[pid]
            _signal(pid, starts[pid], signal.SIGSTOP)


def _add_descendants(found: set[int]) -> set[int]:
    stats = {pid: stat for pid in _list_pids() if (stat := read_stat(pid))}
    parents = {pid: int(stat[STAT_PARENT]) for pid, stat in stats.items()}
    everybody, frontier = set(found), set(found)
    while frontier:
        frontier = {pid for pid, parent in parents.items() if parent in frontier} - everybody
        everybody |= frontier
    return everybody


def _signal(pid: int, start: int | None, number: int) -> None:
    """Signal a process, unless its id is another's by now."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if start is None or start_ticks(pid) == start:
            signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return
    finally:
        os.close(handle)


# -- directories ----------------------------------------------------------------------------------


def _remove_tree(path: str) -> bool:
    """Delete a directory, as deep and as closed as it may be; no link is ever followed.

    What lies deeper is moved up to the top before it is taken apart, so depth costs nothing.
    """
    try:
        if (top := enter_directory(path)) is None:
            raise RemovalError(f"{path} is not a directory; delete it manually")
    except FileNotFoundError:
        return False
    deadline_s = time.monotonic() + _EMPTY_S
    try:
        while names := os.listdir(top):
            if time.monotonic() > deadline_s:
                raise RemovalError(f"{path} was not empty after {_EMPTY_S:g} s")
            for name in names:
                with suppress(FileNotFoundError):  # a reaper and gc may be at it at once
                    take_apart(name, top)
    finally:
        os.close(top)
    with suppress(FileNotFoundError):
        os.rmdir(path)
    return True
