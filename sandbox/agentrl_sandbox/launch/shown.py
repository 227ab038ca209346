"""Paths and users that a supervisor gets of this machine when it is a process of it."""

import os
import sys
import sysconfig
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from agentrl.errors import ConfigError
from agentrl_sandbox import enter
from agentrl_sandbox.inside.root import RootStep
from agentrl_sandbox.launch.container import PACKAGES, ROOT
from agentrl_sandbox.launch.users import draw_block, find_own_users, gives_ids, map_block
from agentrl_sandbox.root import ARCHIVE, session_steps
from agentrl_sandbox.visible_files import is_visible


@dataclass(frozen=True, slots=True)
class VisiblePaths:
    """Paths of this machine beside the system's programs, where they are inside, and the way."""

    binds: tuple[tuple[str, str], ...]
    """Paths outside and inside."""
    stage: dict[str, str]
    """Paths bound first where every user gets, by their names there; see `enter`."""
    as_root: bool
    """Whether ids of nobody are given to the supervisor and its sessions."""

    @classmethod
    def collect(cls, packages: str) -> Self:
        """Return the interpreter, and the directory of packages unless that is empty."""
        binds = [(path, path) for path in python_paths()]
        if packages:
            binds.append((packages, PACKAGES))
        # Where nobody gets through (below a home directory, say), the way leads over a stage.
        as_root = gives_ids(Path("/proc/self/uid_map").read_text(), os.geteuid())
        stage = {f"shown-{at}": source for at, (source, _) in enumerate(binds)} if as_root else {}
        return cls(tuple(binds), stage, as_root)

    def steps(self) -> list[RootStep]:
        """Return the steps to the supervisor's root."""
        staged = {source: f"{enter.STAGE}/{name}" for name, source in self.stage.items()}
        return session_steps([(staged.get(path, path), to) for path, to in self.binds], ROOT)

    def users(self) -> dict[str, Any]:
        """Return the part of the plan for `enter` about users."""
        ids = draw_block() if self.as_root else None
        users = find_own_users([path for path, _ in self.binds]) if ids is None else map_block(ids)
        return {
            "user_id": None if ids is None else ids.start,
            "users": None if users is None else asdict(users),
            "stage": self.stage,
        }


def supervisor_command() -> list[str]:
    """Return the command of a supervisor, as it is inside."""
    return [base_python(), "-I", "-S", "-X", "utf8", ARCHIVE]


def memory_file(name: str, data: bytes) -> int:
    """Return the descriptor of a file in memory that holds these bytes."""
    fd = os.memfd_create(name)
    with open(fd, "wb", closefd=False) as file:
        file.write(data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def base_python() -> str:
    """Return the interpreter behind a virtual environment, links resolved."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


def python_paths() -> list[str]:
    """Return the paths of the base interpreter beside /usr: its program, and its libraries.

    `ConfigError` for an interpreter installed straight into a directory that must stay hidden.
    """
    program = Path(base_python())
    stdlib = Path(sysconfig.get_path("stdlib")).resolve()
    prefixes = {program.parent.parent, stdlib.parent.parent}
    prefixes |= {Path(prefix).resolve() for prefix in (sys.base_prefix, sys.base_exec_prefix)}
    hidden = {Path("/"), Path("/home"), Path("/tmp"), Path.home().resolve()}
    if refused := sorted(prefixes & hidden):
        raise ConfigError(
            f"Python is installed in {refused[0]}, which a sandbox must not see; use an "
            "interpreter installed in a directory of its own"
        )
    candidates = {prefix / name for prefix in prefixes for name in ("lib", "lib64")}
    candidates = {path.resolve() for path in candidates if path.is_dir()} | {program, stdlib}
    paths: list[Path] = []
    for path in sorted(candidates):
        if not is_visible(path) and not any(path.is_relative_to(above) for above in paths):
            paths.append(path)
    return [str(path) for path in paths]
