"""Memory that this process may have: the machine's, or less where a cgroup limits it, as the one of
a container does."""

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from agentrl.runtime.cgroup_place import Version, find_own_cgroup

NO_LIMIT_BYTES = 2**60
"""More than any machine has. v1 writes `no limit` as a number of this kind."""
_LIMIT = {1: "memory.limit_in_bytes", 2: "memory.max"}


def total_bytes() -> int:
    """Return the memory there is for us."""
    physical_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return least_limit_bytes(cgroup_levels(), physical_bytes)


def least_limit_bytes(levels: Sequence[tuple[Version, str]], physical_bytes: int) -> int:
    """Return the least limit of some cgroups, and of the machine."""
    limits = [read_limit_bytes(version, directory) for version, directory in levels]
    return min(physical_bytes, *limits, NO_LIMIT_BYTES)


def read_limit_bytes(version: Version, directory: str) -> int:
    """Return the limit of a cgroup; `NO_LIMIT_BYTES` where it has none."""
    try:
        return limit_bytes_of(Path(directory, _LIMIT[version]).read_text())
    except OSError:  # the root of v2 has no limit
        return NO_LIMIT_BYTES


def limit_bytes_of(text: str) -> int:
    """Read a file with a limit: a number, or `max`."""
    return NO_LIMIT_BYTES if text.strip() == "max" else min(int(text), NO_LIMIT_BYTES)


@cache
def cgroup_levels() -> Sequence[tuple[Version, str]]:
    """Return the cgroups we run in, innermost first, as far up as they can be seen."""
    if (place := find_own_cgroup()) is None:
        return ()
    directory, levels = place.directories["memory"], list[tuple[Version, str]]()
    while os.path.exists(f"{directory}/cgroup.procs"):
        levels.append((place.version, directory))
        directory = os.path.dirname(directory)
    return levels
