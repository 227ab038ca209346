"""Position of this process in the tree of cgroups, and its right to make cgroups there.

Ours are made below the cgroup we run in, never beside it: whatever limit holds for us holds for
them.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

HOST_LEAF = "agentrl-host"
"""Holds the processes of a v2 cgroup that was divided; see `group.divide`."""
_SYSTEMD = "/run/systemd/system"
_DELEGATED = ("user.delegate", "trusted.delegate")

CGROUPS = "/sys/fs/cgroup"
"""The only place where what is left behind is looked for."""

Version = Literal[1, 2]


@dataclass(frozen=True, slots=True)
class CgroupPath:
    """The directories of the cgroup that this process runs in."""

    version: Version
    directories: Mapping[str, str]
    """Keyed by controller: `memory` always, `pids` and `cpu` if any. In v2 all are the same."""


@dataclass(frozen=True, slots=True)
class _Mount:
    version: Version
    root: str
    point: str
    controllers: frozenset[str]


def locate(
    mountinfo: str, membership: str, controllers_of: Callable[[str], frozenset[str]]
) -> CgroupPath | None:
    """Find our directories, from /proc/self/mountinfo and /proc/self/cgroup.

    `controllers_of` reads the controllers of a v2 directory. None when no hierarchy with the
    memory controller is mounted where we can see our own part of it.
    """
    mounts, paths = _mounts(mountinfo), _paths(membership)
    for version in (1, 2):
        directories: dict[str, str] = {}
        for mount in (m for m in mounts if m.version == version):
            for controller in ("memory", "pids", "cpu"):
                path = paths.get(controller if version == 1 else "")
                directory = None if path is None else _directory(mount, path)
                if directory is None or controller in directories:
                    continue
                mount_controllers = mount.controllers if version == 1 else controllers_of(directory)
                if controller in mount_controllers:
                    directories[controller] = directory
        if "memory" in directories:
            return CgroupPath(version, directories)
    return None


def _mounts(mountinfo: str) -> Sequence[_Mount]:
    mounts: list[_Mount] = []
    for line in mountinfo.splitlines():
        head, _, right = line.partition(" - ")
        fields, (kind, _, options) = head.split(), right.split(maxsplit=2)
        if kind in ("cgroup", "cgroup2"):
            version = 1 if kind == "cgroup" else 2
            root, point = _unescape(fields[3]), _unescape(fields[4])
            mounts.append(_Mount(version, root, point, frozenset(options.split(","))))
    return mounts


def _paths(membership: str) -> dict[str, str]:
    """Return our path in each hierarchy, by controller; v2's is named by an empty string."""
    paths: dict[str, str] = {}
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        paths.update(dict.fromkeys(controllers.split(","), path))
    return paths


def _directory(mount: _Mount, path: str) -> str | None:
    root = mount.root.rstrip("/")
    if ".." in path.split("/") or (path != root and not path.startswith(f"{root}/")):
        return None  # outside of what is mounted here
    directory = mount.point + path.removeprefix(root).rstrip("/")
    if mount.version == 2 and os.path.basename(directory) == HOST_LEAF:
        return os.path.dirname(directory)  # we were put there when the one above was divided
    return directory


def _unescape(path: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        path = path.replace(code, character)
    return path


def find_own_cgroup() -> CgroupPath | None:
    """Return the cgroup of this process, `cpu` only where it is writable; None without cgroups."""
    if (place := _find_cgroup("self")) is None:
        return None
    entries = place.directories.items()
    directories = {
        key: directory for key, directory in entries if key != "cpu" or _is_writable(directory)
    }
    return CgroupPath(place.version, directories)


def memory_directory(pid: int) -> str | None:
    """Return the directory that counts the memory of a process; None where it cannot be seen."""
    place = _find_cgroup(f"{pid}")
    return None if place is None else place.directories["memory"]


def _find_cgroup(process: str) -> CgroupPath | None:
    try:
        mountinfo = Path("/proc/self/mountinfo").read_text()
        membership = Path(f"/proc/{process}/cgroup").read_text()
    except OSError:
        return None
    return locate(mountinfo, membership, _controllers_of)


def _is_writable(directory: str) -> bool:
    procs = f"{directory}/cgroup.procs"
    return os.access(directory, os.W_OK | os.X_OK) and os.access(procs, os.W_OK)


def _controllers_of(directory: str) -> frozenset[str]:
    try:
        return frozenset(Path(directory, "cgroup.controllers").read_text().split())
    except OSError:
        return frozenset()


def explain_refusal(place: CgroupPath) -> str:
    """Return why we may not make cgroups there, or an empty string.

    In v2 the processes of a cgroup that gets children have to move into one of them, so it must be
    ours alone: what systemd has not delegated is systemd's.
    """
    for controller in ("memory", "pids"):
        if (directory := place.directories.get(controller)) is None:
            return f"there is no {controller} controller"
        if not directory.startswith(CGROUPS):
            return f"{directory} ({controller}) is not below {CGROUPS}"
        if not _is_writable(directory):
            return f"{directory} ({controller}) is not writable by you"
    if place.version == 1 or os.geteuid() != 0 or not os.path.isdir(_SYSTEMD):
        return ""
    directory = place.directories["memory"]
    if _is_delegated(directory):
        return ""
    return f"{directory} belongs to systemd and is not delegated to you"


def _is_delegated(directory: str) -> bool:
    for name in _DELEGATED:
        try:
            if os.getxattr(directory, name) == b"1":
                return True
        except OSError:
            continue
    return False
