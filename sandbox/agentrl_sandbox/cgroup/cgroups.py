"""All cgroups of this process: where they are made, how they are named, who removes what is left.

A name is `agentrl-<pid>.<start time>-...` of the process that made it, so that whoever finds one
can tell whether its owner lives: process ids are used again, start times of one id are not.
"""

import os
import re
from pathlib import Path
from typing import Self

from agentrl_sandbox.cgroup.group import Group, divide, remove_directory
from agentrl_sandbox.cgroup.place import HOST_LEAF, Place, own_place, refusal
from agentrl_sandbox.cgroup.values import Bounds

PREFIX = "agentrl-"


class Cgroups:
    """Makes cgroups below the one this process runs in."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._owner = owner(os.getpid())

    @classmethod
    def find(cls) -> Self | None:
        """Return it where cgroups with a memory controller may be made, and None elsewhere."""
        place = own_place()
        return None if place is None or refusal(place) else cls(place)

    @property
    def place(self) -> Place:
        """Where they are made."""
        return self._place

    def make(self, name: str, bounds: Bounds) -> Group:
        """Make a cgroup; OSError when the kernel refuses."""
        place = self._place
        if place.version == 2:
            divide(place.directories["memory"], HOST_LEAF, place.directories)
        return Group.create(
            place.version, place.directories, f"{PREFIX}{self._owner}-{name}", bounds
        )

    def reap(self) -> list[str]:
        """Remove what processes that have ended left behind; return the names."""
        removed: list[str] = []
        for directory in dict.fromkeys(self._place.directories.values()):
            for name in sorted(os.listdir(directory)):
                abandoned = (whose := maker(name)) is not None and whose != owner(
                    int(whose.split(".")[0])
                )
                if abandoned and remove_directory(f"{directory}/{name}"):
                    removed.append(name)
        return list(dict.fromkeys(removed))


def why_not() -> str:
    """Return why `Cgroups.find` gives None, or an empty string where it does not."""
    if (place := own_place()) is None:
        return "no hierarchy with a memory controller is mounted"
    return refusal(place)


def maker(name: str) -> str | None:
    """Return who made a cgroup of this name, as `owner` would say it; None when not agentrl."""
    match = re.match(rf"{PREFIX}(\d+\.\d+)-", name)
    return None if match is None else match[1]


def owner(pid: int) -> str | None:
    """Return the name of a process that no other will ever have; None when it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return f"{pid}.{stat.rpartition(')')[2].split()[19]}"
