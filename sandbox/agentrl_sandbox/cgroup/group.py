"""One cgroup that we made: a bound on everything that runs in it and on what that starts."""

import contextlib
import errno
import os
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Self

from agentrl.runtime.cgroup_place import (
    HOST_LEAF,
    CgroupPath,
    Version,
    explain_refusal,
    find_own_cgroup,
)
from agentrl_sandbox.cgroup.values import CgroupLimits, values
from agentrl_sandbox.inside.processes import read_proc_file
from agentrl_sandbox.lease import ResourceLease, new_mark
from agentrl_sandbox.reaping.remove import remove_cgroup

REMOVE_S = 5.0
"""Deadline for the kernel to let go of a cgroup whose processes were killed."""
_LEAF = "self"
_ROUNDS = 100


class ProcessCgroup:
    """A cgroup. Its directories are one per controller in v1, one for all in v2.

    Moving a process can wait for the kernel for some 10 ms when nothing moved shortly before, and
    removing waits for processes to end: call both from a thread, not from an event loop.
    """

    def __init__(
        self, version: Version, directories: Mapping[str, str], leases: Sequence[ResourceLease]
    ) -> None:
        self._version: Version = version
        self.directories = directories
        """By controller."""
        self._leases = leases
        self._divided = False

    @classmethod
    def create(
        cls,
        version: Version,
        parents: Mapping[str, str],
        name: str,
        bounds: CgroupLimits,
        *,
        leased: bool = False,
    ) -> Self:
        """Make a cgroup below `parents`, by controller, where its bounds ask for that controller.

        OSError when the kernel refuses, or there is no such controller. What is inside a leased
        one needs no lease.
        """
        controllers = dict.fromkeys(
            ["memory", *(value.controller for value in values(version, bounds))]
        )
        if missing := [controller for controller in controllers if controller not in parents]:
            raise OSError(f"{parents} has no cgroup controller {', '.join(missing)}")
        parent_paths = parents if version == 2 else {key: parents[key] for key in controllers}
        directories = {key: f"{parent}/{name}" for key, parent in parent_paths.items()}
        lease_paths = dict.fromkeys(directories.values()) if leased else ()
        group = cls(
            version, directories, [ResourceLease.take("cgroup", path) for path in lease_paths]
        )
        try:
            for directory in group._unique():
                os.mkdir(directory)
            group.limit(bounds)
        except BaseException:
            group.remove(0)
            raise
        return group

    def make(self, name: str, bounds: CgroupLimits) -> "ProcessCgroup":
        """Make a cgroup inside this one: bounded by both.

        OSError when the kernel refuses; in v1 also for a bound of a kind that this one lacks.
        """
        if self._version == 2 and not self._divided:
            divide(self.directories["memory"], _LEAF, self.directories)
            os.makedirs(f"{self.directories['memory']}/{_LEAF}", exist_ok=True)
            self._divided = True
        return ProcessCgroup.create(self._version, self.directories, name, bounds)

    def limit(self, bounds: CgroupLimits) -> None:
        """Set limits. OSError for less memory than is in use, which v2 would kill for."""
        order = list(values(self._version, bounds))
        if (wanted_bytes := bounds.memory_bytes) is not None:
            if self._version == 1:
                file = Path(self.directories["memory"], "memory.limit_in_bytes")
                if wanted_bytes > int(file.read_text()):
                    order.reverse()  # with swap counted, the sum may never be the lower of the two
            elif wanted_bytes < (used_bytes := self.memory_bytes()):
                raise OSError(f"{used_bytes} bytes are in use, more than {wanted_bytes}")
        for value in order:
            path = f"{self.directories[value.controller]}/{value.file}"
            if not value.optional or os.path.exists(path):
                _write(path, value.text)

    def add(self, pid: int) -> None:
        """Move a process, by its host pid, with all its threads; what it starts stays with it.

        ProcessLookupError when it has ended. What it started before is not moved: `add_tree`.
        """
        for path in self.join_files():
            _write(path, f"{pid}")

    def add_tree(self, pid: int) -> None:
        """Move a process and everything below it; whatever ends meanwhile is skipped."""
        self.add(pid)
        moved = {pid}
        while fresh := _list_children(moved) - moved:
            for child in fresh:
                with contextlib.suppress(ProcessLookupError):
                    self.add(child)
            moved |= fresh

    def pids(self) -> list[int]:
        """Return the processes in it and in what is inside it."""
        found: set[int] = set()
        for top in self._unique():
            for directory, _, _ in os.walk(top):
                found.update(_read_pids(directory))
        return sorted(found)

    def memory_bytes(self) -> int:
        """Return the memory in use."""
        file = "memory.usage_in_bytes" if self._version == 1 else "memory.current"
        return int(Path(self.directories["memory"], file).read_text())

    def private_bytes(self) -> int:
        """Return the memory in use without files that could be read again."""
        prefix = "total_" if self._version == 1 else ""
        stat = Path(self.directories["memory"], "memory.stat").read_text()
        files = sum(field(stat, f"{prefix}{kind}_file") for kind in ("inactive", "active"))
        return max(0, self.memory_bytes() - files)

    def oom_kills(self) -> int:
        """Return the number of processes ever killed here by the kernel for want of memory.

        In v1 those of cgroups inside this one are not counted; in v2 they are.
        """
        file = "memory.oom_control" if self._version == 1 else "memory.events"
        return field(Path(self.directories["memory"], file).read_text(), "oom_kill")

    def remove(self, within_s: float = REMOVE_S) -> bool:
        """Kill what is left inside, and remove it. Idempotent; whether it is gone by then."""
        deadline_s = time.monotonic() + within_s
        try:
            for directory in self._unique():
                remove_cgroup(directory, deadline_s - time.monotonic())
        except OSError:
            return False
        for lease in self._leases:
            lease.release()
        return True

    def _unique(self) -> list[str]:
        return list(dict.fromkeys(self.directories.values()))

    def join_files(self) -> list[str]:
        """Return the files by which a process joins: it writes its pid, or 0, into each."""
        leaf = f"/{_LEAF}" if self._divided else ""
        return [f"{directory}{leaf}/cgroup.procs" for directory in self._unique()]


class CgroupRoot:
    """Makes cgroups below the one this process runs in. Each is leased until it is removed."""

    def __init__(self, place: CgroupPath) -> None:
        self.place = place
        """Directories in which cgroups are made."""

    @classmethod
    def find(cls) -> Self | None:
        """Return it where cgroups with a memory controller may be made, and None elsewhere."""
        place = find_own_cgroup()
        return None if place is None or explain_refusal(place) else cls(place)

    def make(self, name: str, bounds: CgroupLimits) -> ProcessCgroup:
        """Make `agentrl-<this process>-<name>`; OSError when the kernel refuses."""
        version, parents = self.place.version, self.place.directories
        if version == 2:
            divide(parents["memory"], HOST_LEAF, parents)
        full_name = f"agentrl-{new_mark()}-{name}"
        return ProcessCgroup.create(version, parents, full_name, bounds, leased=True)


def explain_no_cgroups() -> str:
    """Return why `CgroupRoot.find` gives None, or an empty string where it does not."""
    if (place := find_own_cgroup()) is None:
        return "no hierarchy with a memory controller is mounted"
    return explain_refusal(place)


def divide(directory: str, leaf: str, controllers: Collection[str]) -> None:
    """Let a v2 cgroup have bounded children: its own processes move into one of them.

    OSError when the kernel refuses, or processes appear faster than they are moved.
    """
    enabled = set(Path(directory, "cgroup.subtree_control").read_text().split())
    additions = " ".join(f"+{controller}" for controller in sorted(set(controllers) - enabled))
    for last in range(_ROUNDS):
        try:
            return _write(f"{directory}/cgroup.subtree_control", additions) if additions else None
        except OSError as error:
            if error.errno != errno.EBUSY or last == _ROUNDS - 1:
                raise
        os.makedirs(f"{directory}/{leaf}", exist_ok=True)
        for pid in _read_pids(directory):
            with contextlib.suppress(ProcessLookupError):
                _write(f"{directory}/{leaf}/cgroup.procs", f"{pid}")


def field(text: str, name: str) -> int:
    """Return the number after a name, in a file of one name and number per line; 0 without it."""
    for line in text.splitlines():
        key, _, number = line.partition(" ")
        if key == name:
            return int(number)
    return 0


def host_pid(pidfd: int) -> int:
    """Return the pid here of the process a pidfd stands for, whatever namespace it came from.

    ProcessLookupError when that process has ended.
    """
    text = read_proc_file(f"/proc/self/fdinfo/{pidfd}").replace(":\t", " ")
    if (pid := field(text, "Pid")) <= 0:
        raise ProcessLookupError(f"the process of descriptor {pidfd} has ended")
    return pid


def _read_pids(directory: str) -> list[int]:
    try:
        return [int(pid) for pid in Path(directory, "cgroup.procs").read_text().split()]
    except OSError:
        return []  # the group is being removed


def _list_children(pids: Collection[int]) -> set[int]:
    children: set[int] = set()
    for pid in pids:
        with contextlib.suppress(OSError):  # it ended while we looked
            for thread in os.listdir(f"/proc/{pid}/task"):
                with contextlib.suppress(OSError):
                    listing = Path(f"/proc/{pid}/task/{thread}/children").read_text()
                    children.update(map(int, listing.split()))
    return children


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
