"""All cgroups of this process: where they are made, and how they are named."""

from typing import Self

from agentrl_sandbox.cgroup.group import ProcessCgroup, divide
from agentrl_sandbox.cgroup.place import HOST_LEAF, CgroupPath, explain_refusal, find_own_cgroup
from agentrl_sandbox.cgroup.values import CgroupLimits
from agentrl_sandbox.lease import new_mark


class CgroupRoot:
    """Makes cgroups below the one this process runs in. Each is leased until it is removed."""

    def __init__(self, place: CgroupPath) -> None:
        self._place = place

    @classmethod
    def find(cls) -> Self | None:
        """Return it where cgroups with a memory controller may be made, and None elsewhere."""
        place = find_own_cgroup()
        return None if place is None or explain_refusal(place) else cls(place)

    @property
    def place(self) -> CgroupPath:
        """Directories in which cgroups are made."""
        return self._place

    def make(self, name: str, bounds: CgroupLimits) -> ProcessCgroup:
        """Make `agentrl-<this process>-<name>`; OSError when the kernel refuses."""
        version, parents = self._place.version, self._place.directories
        if version == 2:
            divide(parents["memory"], HOST_LEAF, parents)
        full_name = f"agentrl-{new_mark()}-{name}"
        return ProcessCgroup.create(version, parents, full_name, bounds, leased=True)


def explain_no_cgroups() -> str:
    """Return why `CgroupRoot.find` gives None, or an empty string where it does not."""
    if (place := find_own_cgroup()) is None:
        return "no hierarchy with a memory controller is mounted"
    return explain_refusal(place)
