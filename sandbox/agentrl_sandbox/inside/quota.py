"""Limits of sessions, and the shares of their processes in them. Pure."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class SessionLimits:
    """Settings of a keeper and of its processes: `agentrl.sandbox.Limits`, and where they are."""

    root: str
    isolated: bool
    wall_s: float
    cpu_s: float
    memory_bytes: int
    processes: int
    """Of a process: -1 leaves it to the keeper, where the kernel would count the whole user."""
    open_files: int
    file_bytes: int
    disk_bytes: int
    files: int
    output_bytes: int
    warm: int
    """Sessions to keep ready."""
    packages: str = ""
    """A directory of packages to import from, or nothing."""
    user_id: int = -1
    """User of a session and its forks, in the user namespace of the keeper; -1: the keeper's."""
    processes_max: int = 0
    """Of a process, the hard limit: what all copies of a session may hold together."""


@dataclass(frozen=True)
class SessionQuota:
    """The limits of one opened session and its forks."""

    settings: SessionLimits
    forks_max: int

    @property
    def processes_max(self) -> int:
        """Number of processes that all copies may hold together."""
        return self.settings.processes * (self.forks_max + 1)

    def processes(self, below: int) -> int:
        """Return the limit of an interpreter that has `below` copies in its user namespace.

        The kernel counts a copy's processes for what it was copied from, too. -1: not counted.
        """
        return self.settings.processes * (1 + below) if self.settings.isolated else -1

    def confinement(self, used_cpu_s: float) -> SessionLimits:
        """Return the limits of another process of a session."""
        return replace(
            self.settings,
            processes=self.processes(0),
            processes_max=self.processes_max,
            cpu_s=max(1, round(self.settings.cpu_s - used_cpu_s)),
        )

    def is_used_up(self, used_cpu_s: float) -> bool:
        """Say whether the CPU time is used up.

        What the kernel limits and what it reports are counted apart, and differ a little.
        """
        return used_cpu_s > 0.9 * self.settings.cpu_s

    @property
    def cpu_text(self) -> str:
        """Message for used-up CPU time."""
        return f"the session has used up its {self.settings.cpu_s:g} s of CPU time"
