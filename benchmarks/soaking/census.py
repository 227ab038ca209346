"""What this process holds outside itself, counted: processes, directories, containers, files."""

import os
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from agentrl_sandbox.inside.processes import descendants
from agentrl_sandbox.lease import LABEL_OWNER
from agentrl_sandbox.reaping import record
from agentrl_sandbox.reaping.owner import LeaseOwner, start_ticks

_CGROUPS = Path("/sys/fs/cgroup")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(slots=True)
class Census:
    """Remembers every process that was ever seen below this one."""

    docker: bool = False
    """Ask the engine of containers, too."""
    files_before: int = 0
    _before: dict[int, int | None] = field(default_factory=lambda: _below())
    """Who was there already, say multiprocessing's resource tracker: none of ours."""
    _seen: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    """Process ids with their start times: ids are used again."""

    def look(self) -> None:
        """Take down who is there now, and forget who is gone."""
        self._seen = {(pid, started) for pid, started in self._seen if start_ticks(pid) == started}
        for pid in self._ours():
            if (started := start_ticks(pid)) is not None:
                self._seen.add((pid, started))

    def left(self) -> dict[str, list[str]]:
        """Return what there still is, by kind; empty lists when all is well."""
        self.look()
        # What has ended and was not waited for is a child still.
        alive = {pid for pid, _ in self._seen} | self._ours()
        return {
            "processes": [f"{pid} {_command(pid)}" for pid in sorted(alive) if not _reaper(pid)],
            "directories": _directories(),
            "leases": [str(path) for path in _leases()],
            "cgroups": _cgroups(),
            "containers": _containers() if self.docker else [],
            "descriptors": _descriptors(self.files_before),
        }

    def _ours(self) -> set[int]:
        others = {pid for pid, started in self._before.items() if start_ticks(pid) == started}
        return descendants(os.getpid()) - others

    def left_after(self, grace_s: float) -> dict[str, list[str]]:
        """Return what is left when everything had some time to end."""
        deadline_s = time.monotonic() + grace_s
        while any((left := self.left()).values()) and time.monotonic() < deadline_s:
            time.sleep(0.1)
        return left


def open_files() -> int:
    """Return how many descriptors this process holds."""
    return len(os.listdir("/proc/self/fd"))


def resident_bytes() -> int:
    """Return how much memory of its own this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES


def _descriptors(before: int) -> list[str]:
    if (now := open_files()) <= before:
        return []
    found: list[str] = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found.append(os.readlink(entry))
        except FileNotFoundError:
            continue  # of the listing itself
    return [f"{now} open instead of {before}: {found}"]


def _below() -> dict[int, int | None]:
    """Return the processes below this one and when they started, None for those that ended."""
    return {pid: start_ticks(pid) for pid in descendants(os.getpid())}


def _reaper(pid: int) -> bool:
    """Say whether it is the one that waits for our own end."""
    return "agentrl_sandbox.reaping.reaper" in _command(pid)


def _command(pid: int) -> str:
    try:
        line = Path("/proc", str(pid), "cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return "?"
    return line.replace(b"\0", b" ").decode(errors="replace").strip() or "(zombie)"


def _directories() -> list[str]:
    mark = LeaseOwner.current().text
    return [str(path) for path in Path(tempfile.gettempdir()).glob(f"agentrl-*{mark}*")]


def _leases() -> list[Path]:
    return list((record.state_directory() / LeaseOwner.current().text).glob("*.lease"))


def _cgroups() -> list[str]:
    mark = f"agentrl-{LeaseOwner.current().text}"
    walk = os.walk(_CGROUPS)
    return [f"{place}/{name}" for place, names, _ in walk for name in names if mark in name]


def _containers() -> list[str]:
    import docker

    label = f"{LABEL_OWNER}={LeaseOwner.current().text}"
    with closing(docker.from_env()) as engine:
        found = engine.containers.list(all=True, filters={"label": label})
        return [str(container.id) for container in found]
