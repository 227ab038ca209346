"""Settings of a keeper, and the state of its sessions."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agentrl_sandbox.inside.cpu_time import CpuMeter
from agentrl_sandbox.inside.session_directory import SessionDirectory

if TYPE_CHECKING:
    from agentrl_sandbox.inside.command import CommandNamespace, RunningCommand
    from agentrl_sandbox.inside.interpreter_process import InterpreterProcess
    from agentrl_sandbox.inside.interpreter_start import InterpreterStart


@dataclass(frozen=True)
class SessionLimits:
    """Settings of a keeper: the limits as plain numbers, and the root of sessions."""

    root: str
    isolated: bool
    wall_s: float
    cpu_s: float
    memory_bytes: int
    processes: int
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
    """User of a session and its forks, in the user namespace of the pool; -1: the keeper's."""


@dataclass
class SessionState:
    """One session: a place for its files, and an interpreter when there is one."""

    id: int
    place: SessionDirectory
    life: "InterpreterProcess | None" = None
    spare: "InterpreterStart | None" = None
    """The interpreter as it was before the cell that runs now, waiting to take its place."""
    commands: "dict[int, RunningCommand]" = field(default_factory=dict)
    """Commands by request, while somebody waits for them."""
    world: "CommandNamespace | None" = None
    """User namespace of its commands; made for the first one."""
    worlds: set[int] = field(default_factory=set[int])
    """User namespaces of its processes: what a process left behind belongs to."""
    cpu_s: float = 0.0
    """Used by processes that are dead and were waited for."""
    meter: CpuMeter = field(default_factory=CpuMeter)
    """CPU time that all of its processes were seen to use."""

    @property
    def used_cpu_s(self) -> float:
        """CPU time it has used, as far as is known."""
        return max(self.cpu_s, self.meter.used_s)
