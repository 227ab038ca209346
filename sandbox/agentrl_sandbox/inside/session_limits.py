"""Limits of sessions as plain numbers, as they come from the host."""

from dataclasses import dataclass


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
