"""How a supervisor is started: inside bubblewrap, or as a bare process when the user says so."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from socket import socket
from typing import Protocol

from agentrl.errors import ConfigError
from agentrl.sandbox import SandboxSettings
from agentrl_sandbox import enter
from agentrl_sandbox.bundle import bundle
from agentrl_sandbox.inside.files import remove_tree

INSTALL = "apt-get install bubblewrap"
_WAY_OUT = (
    "or, to run model-written code with resource limits and nothing else, set "
    "sandbox.backend: process and sandbox.allow_unisolated: true"
)
_SYSTEM = ("/bin", "/lib", "/lib32", "/lib64", "/sbin")
_DEVICES = ("/dev/full", "/dev/null", "/dev/random", "/dev/urandom", "/dev/zero")
_ETC = ("/etc/ld.so.cache", "/etc/localtime")
_ARCHIVE = "/run/agentrl.zip"
_USER_IDS = range(2**30, 2**30 + 2**24)
"""Where nobody's users are; each supervisor started by root gets one of its own."""
_INSIDE_ID = "1000"


class Log:
    """What a supervisor writes to standard error, in memory."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("agentrl-sandbox-log")
        self._kept = ""

    def tail(self) -> str:
        """Return the end of it, also after `close`."""
        if self.fd >= 0:
            size_bytes = os.fstat(self.fd).st_size
            tail = os.pread(self.fd, 4096, max(0, size_bytes - 4096))
            self._kept = tail.decode(errors="replace").strip()
        return self._kept

    def close(self) -> None:
        """Free the memory. Idempotent."""
        self.tail()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


@dataclass(frozen=True, slots=True)
class Started:
    """A supervisor that is running."""

    process: subprocess.Popen[bytes]
    root: str
    """Where its sessions live, as it sees it."""
    log: Log
    host_directory: str | None = None
    """To be removed at the end, when sessions live on the host."""

    def release(self) -> None:
        """Free what the host holds of a supervisor that has ended."""
        self.log.close()
        if self.host_directory is not None and os.path.exists(self.host_directory):
            remove_tree(self.host_directory)


class Launcher(Protocol):
    """Starts supervisors of one kind."""

    @property
    def isolated(self) -> bool:
        """Whether sessions get namespaces of their own."""
        ...

    def start(self, control: socket) -> Started:
        """Start a supervisor whose descriptor 0 is `control`."""
        ...

    def explain(self, why: str) -> str:
        """Return the text of the error for a supervisor that could not start."""
        ...


def launcher(settings: SandboxSettings) -> Launcher:
    """Return the launcher of a back-end; `ConfigError` when it may not or cannot be used."""
    if settings.backend == "process":
        if not settings.allow_unisolated:
            raise ConfigError(
                "sandbox.backend is 'process', which runs model-written code as you, with your "
                "files and your network; set sandbox.allow_unisolated: true if that is what you "
                f"want, or sandbox.backend: bubblewrap ({INSTALL})"
            )
        return ProcessLauncher()
    if (path := shutil.which("bwrap")) is None:
        raise ConfigError(
            "sandbox.backend is 'bubblewrap' and there is no bwrap on PATH; "
            f"install it ({INSTALL}), {_WAY_OUT}"
        )
    return BubblewrapLauncher(path)


class ProcessLauncher:
    """A bare process of the same user: resource limits, and nothing else."""

    isolated = False

    def start(self, control: socket) -> Started:
        """Start the supervisor beside us, with a directory of its own for the sessions."""
        root = tempfile.mkdtemp(prefix="agentrl-sandbox-")
        archive = Path(root, "inside.zip")
        archive.write_bytes(bundle())
        log = Log()
        command = [sys.executable, "-I", "-S", "-X", "utf8", str(archive)]
        process = _popen(command, control, log)
        return Started(process, root, log, host_directory=root)

    def explain(self, why: str) -> str:
        """Return the text of the error for a supervisor that could not start."""
        return f"the sandbox supervisor did not start as a plain process: {why}"


@dataclass(frozen=True, slots=True)
class BubblewrapLauncher:
    """Namespaces through bubblewrap; sessions live in memory inside, and never on the host."""

    path: str
    isolated: bool = field(default=True, init=False)

    def start(self, control: socket) -> Started:
        """Start the supervisor inside; as root, become nobody first."""
        as_root = os.geteuid() == 0
        python = python_directories()
        stage = {f"python-{at}": path for at, path in enumerate(python)} if as_root else {}
        sources = {path: f"{enter.STAGE}/{name}" for name, path in stage.items()}
        archive_fd = _memory_file("agentrl-inside", bundle())
        options = bubblewrap_options(
            [(sources.get(path, path), path) for path in python], archive_fd=archive_fd
        )
        options_fd = _memory_file("agentrl-options", b"".join(o.encode() + b"\0" for o in options))
        command = [self.path, "--args", str(options_fd), base_python(), "-I", "-S", "-X", "utf8"]
        plan = {
            "user_id": random.SystemRandom().choice(_USER_IDS) if as_root else None,
            "stage": stage,
            "command": [*command, _ARCHIVE],
        }
        plan_fd = _memory_file("agentrl-plan", json.dumps(plan).encode())
        script = ["-I", "-S", enter.__file__, str(plan_fd)]
        log = Log()
        fds = (archive_fd, options_fd, plan_fd)
        try:
            process = _popen([sys.executable, *script], control, log, fds)
        finally:
            for fd in fds:
                os.close(fd)
        return Started(process, "/session", log)

    def explain(self, why: str) -> str:
        """Return the text of the error for a supervisor that could not start."""
        return (
            f"bubblewrap could not build the sandbox: {why}; allow unprivileged user namespaces "
            "on this machine (sysctl user.max_user_namespaces and, on Ubuntu, "
            f"kernel.apparmor_restrict_unprivileged_userns=0), {_WAY_OUT}"
        )


def _popen(
    command: Sequence[str], control: socket, log: Log, fds: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        stdin=control.fileno(),
        stdout=subprocess.DEVNULL,
        stderr=log.fd,
        env={},
        cwd="/",
        pass_fds=fds,
        start_new_session=True,
    )


def _memory_file(name: str, data: bytes) -> int:
    fd = os.memfd_create(name)
    with open(fd, "wb", closefd=False) as file:
        file.write(data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def base_python() -> str:
    """Return the interpreter behind a virtual environment, links resolved."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


def python_directories() -> list[str]:
    """Return the directories outside /usr that the base interpreter needs.

    `ConfigError` for an interpreter installed straight into a directory that must stay hidden.
    """
    stdlib = Path(sysconfig.get_path("stdlib")).resolve()
    wanted = {Path(base_python()).parent.parent, stdlib.parent.parent}
    wanted |= {Path(prefix).resolve() for prefix in (sys.base_prefix, sys.base_exec_prefix)}
    hidden = {Path("/"), Path("/home"), Path("/tmp"), Path.home().resolve()}
    kept: list[str] = []
    for path in sorted(wanted):
        if path in hidden:
            raise ConfigError(
                f"Python is installed in {path}, which a sandbox must not see; "
                "use an interpreter with a directory of its own"
            )
        if not any(path.is_relative_to(above) for above in ("/usr", *kept)):
            kept.append(str(path))
    return kept


def bubblewrap_options(binds: Sequence[tuple[str, str]], *, archive_fd: int) -> list[str]:
    """Return bubblewrap's options: everything unshared, a read-only root, nothing of the host's.

    CAP_SYS_ADMIN is kept in the sandbox's own user namespace, so that the supervisor can give each
    session namespaces of its own; interpreters have no capability at all.
    """
    options = ["--unshare-all", "--die-with-parent", "--new-session", "--as-pid-1", "--clearenv"]
    options += ["--uid", _INSIDE_ID, "--gid", _INSIDE_ID, "--hostname", "sandbox"]
    options += ["--cap-drop", "ALL", "--cap-add", "CAP_SYS_ADMIN"]
    options += ["--ro-bind", "/usr", "/usr"]
    for path in _SYSTEM:
        if os.path.islink(path):
            options += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            options += ["--ro-bind", path, path]
    for path in _ETC:
        options += ["--ro-bind-try", path, path]
    for source, target in binds:
        options += ["--ro-bind", source, target]
    # Devices one by one: --dev would add a second user namespace and take our capability.
    options += ["--proc", "/proc", "--tmpfs", "/dev"]
    for path in _DEVICES:
        options += ["--dev-bind", path, path]
    options += ["--symlink", "/proc/self/fd", "/dev/fd", "--dir", "/session"]
    options += ["--ro-bind-data", str(archive_fd), _ARCHIVE]
    return [*options, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/"]


def stop(process: subprocess.Popen[bytes]) -> None:
    """Kill a supervisor's whole group at once: the last resort."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
