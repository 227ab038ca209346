"""What a keeper knows of its sessions."""

import time
from dataclasses import dataclass, field

from agentrl_sandbox.inside.child import Child, Pipes


@dataclass(frozen=True)
class Settings:
    """What a keeper is told: the limits as plain numbers, and where sessions live."""

    root: str
    isolated: bool
    wall_s: float
    cpu_s: float
    memory_bytes: int
    processes: int
    open_files: int
    file_bytes: int
    disk_bytes: int
    output_bytes: int
    warm: int
    """Sessions to keep ready."""


@dataclass
class Job:
    """The request a session is busy with."""

    request: int
    kind: str
    timeout_s: float
    started_s: float = field(default_factory=time.monotonic)
    pipes: Pipes | None = None
    """Of the copy, when this is a fork."""
    copy_nonce: str = ""
    copy_directory: str = ""

    @property
    def deadline_s(self) -> float:
        """Return when the job must be done, on the monotonic clock."""
        return self.started_s + self.timeout_s


@dataclass
class Session:
    """One session: a directory, and an interpreter when there is one."""

    id: int
    directory: str
    child: Child | None = None
    job: Job | None = None
    cpu_s: float = 0.0
    """Used by interpreters that are dead."""
    last_words: tuple[str, str] | None = None
    """Status and error for the next cell, when the interpreter died between cells."""
