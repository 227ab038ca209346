"""A supervisor inside bubblewrap: namespaces of its own, and a view of this machine's programs."""

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from socket import socket

from agentrl.errors import ConfigError
from agentrl_sandbox import enter
from agentrl_sandbox.bundle import bundle
from agentrl_sandbox.inside.container import LINKS
from agentrl_sandbox.inside.kernel import INSIDE_ID
from agentrl_sandbox.launch.container import PACKAGES, ROOT
from agentrl_sandbox.launch.launcher import Log
from agentrl_sandbox.launch.local import StartedProcess, start_process
from agentrl_sandbox.launch.users import block, own_block, own_users
from agentrl_sandbox.program import UNSHARED, read_only
from agentrl_sandbox.visible_files import is_visible

INSTALL = "apt-get install bubblewrap"
WAY_OUT = (
    "or, to run model-written code with resource limits and nothing else, set "
    "sandbox.backend: process and sandbox.allow_unisolated: true"
)
_DEVICES = ("/dev/full", "/dev/null", "/dev/random", "/dev/urandom", "/dev/zero")
_ETC = ("/etc/fonts", "/etc/ld.so.cache", "/etc/localtime")
_CAPABILITIES = (
    *("CAP_NET_ADMIN", "CAP_SYS_ADMIN", "CAP_SYS_CHROOT", "CAP_SYS_PTRACE", "CAP_SETGID"),
    *("CAP_SETUID", "CAP_DAC_OVERRIDE", "CAP_KILL", "CAP_SYS_RESOURCE"),
)
_FILES = {
    "/etc/hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "/etc/passwd": "agent:x:1000:1000::/home/agent:/bin/bash\n",
    "/etc/group": "agent:x:1000:\n",
    "/etc/nsswitch.conf": "hosts: files\n",
}
"""What programs look up, with nothing of this machine in it."""
_ARCHIVE = "/run/agentrl.zip"


@dataclass(frozen=True, slots=True)
class BubblewrapLauncher:
    """Namespaces through bubblewrap; sessions live in memory inside, and never on the host."""

    path: str
    packages: str = ""
    isolated: bool = field(default=True, init=False)

    async def start(self, control: socket) -> StartedProcess:
        """Start the supervisor inside; as root, become nobody first."""
        as_root = os.geteuid() == 0
        shown = [(path, path) for path in python_paths()]
        if self.packages:
            shown.append((self.packages, PACKAGES))
        # Where nobody gets through (below a home directory, say), the way leads over a stage.
        stage = {f"shown-{at}": source for at, (source, _) in enumerate(shown)} if as_root else {}
        staged = {source: f"{enter.STAGE}/{name}" for name, source in stage.items()}
        binds = [(staged.get(source, source), target) for source, target in shown]
        archive_fd = _memory_file("agentrl-inside", bundle())
        file_fds = {path: _memory_file("file", text.encode()) for path, text in _FILES.items()}
        options = bubblewrap_options(binds, archive_fd=archive_fd, file_fds=file_fds)
        options_fd = _memory_file("agentrl-options", b"".join(o.encode() + b"\0" for o in options))
        python = [base_python(), "-I", "-S", "-X", "utf8", _ARCHIVE]
        program = [self.path, "--args", str(options_fd), *python]
        command, plan_fd = _entering(program, [source for source, _ in shown], stage)
        log = Log()
        fds = (archive_fd, options_fd, plan_fd, *file_fds.values())
        try:
            process = start_process(command, control, log, fds)
        except BaseException:
            log.close()
            raise
        finally:
            for fd in fds:
                os.close(fd)
        return StartedProcess(process, ROOT, log, PACKAGES if self.packages else "")

    def explain(self, why: str) -> str:
        """Return the text of the error for a supervisor that could not start."""
        return (
            f"bubblewrap could not build the sandbox: {why}; allow unprivileged user namespaces "
            "on this machine (sysctl user.max_user_namespaces and, on Ubuntu, "
            f"kernel.apparmor_restrict_unprivileged_userns=0), {WAY_OUT}"
        )


def _entering(
    program: Sequence[str], shown: Sequence[str], stage: Mapping[str, str]
) -> tuple[list[str], int]:
    """Return the command that becomes bubblewrap (`program`), and a descriptor that it needs."""
    ids = own_block() if os.geteuid() == 0 else None
    users = own_users(shown) if ids is None else block(ids)
    plan = {
        "user_id": None if ids is None else ids.start,
        "users": None if users is None else asdict(users),
        "stage": dict(stage),
        "program": program[0],
        "options": program[1:],
    }
    plan_fd = _memory_file("agentrl-plan", json.dumps(plan).encode())
    return [sys.executable, "-I", "-S", enter.__file__, str(plan_fd)], plan_fd


def user_ids(path: str, within_s: float) -> int:
    """Return how many user ids a pool has here: 1 where all sessions share one.

    `OSError` or `subprocess.SubprocessError` when nothing can be isolated.
    """
    look = ["--ro-bind", "/", "/", "--proc", "/proc", "/bin/cat", "/proc/self/uid_map"]
    command, plan_fd = _entering([path, *look], python_paths(), {})
    try:
        done = subprocess.run(
            command,
            pass_fds=(plan_fd,),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=within_s,
            check=True,
        )
    finally:
        os.close(plan_fd)
    return sum(int(line.split()[2]) for line in done.stdout.splitlines())


def _memory_file(name: str, data: bytes) -> int:
    fd = os.memfd_create(name)
    with open(fd, "wb", closefd=False) as file:
        file.write(data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def base_python() -> str:
    """Return the interpreter behind a virtual environment, links resolved."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


def python_paths() -> list[str]:
    """Return what the base interpreter needs beside /usr: its program, and its libraries.

    `ConfigError` for an interpreter installed straight into a directory that must stay hidden.
    """
    program = Path(base_python())
    stdlib = Path(sysconfig.get_path("stdlib")).resolve()
    prefixes = {program.parent.parent, stdlib.parent.parent}
    prefixes |= {Path(prefix).resolve() for prefix in (sys.base_prefix, sys.base_exec_prefix)}
    hidden = {Path("/"), Path("/home"), Path("/tmp"), Path.home().resolve()}
    if refused := sorted(prefixes & hidden):
        raise ConfigError(
            f"Python is installed in {refused[0]}, which a sandbox must not see; "
            "use an interpreter with a directory of its own"
        )
    wanted = {prefix / name for prefix in prefixes for name in ("lib", "lib64")}
    wanted = {path.resolve() for path in wanted if path.is_dir()} | {program, stdlib}
    kept: list[Path] = []
    for path in sorted(wanted):
        if not is_visible(path) and not any(path.is_relative_to(above) for above in kept):
            kept.append(path)
    return [str(path) for path in kept]


def bubblewrap_options(
    binds: Sequence[tuple[str, str]], *, archive_fd: int, file_fds: Mapping[str, int]
) -> list[str]:
    """Return bubblewrap's options: everything unshared, a read-only root, nothing of the host's.

    A few capabilities are kept in the sandbox's own user namespace, so that the supervisor can give
    each session namespaces of its own; interpreters have none at all.
    """
    # And the user namespace, by `enter.py`.
    options = [f"--unshare-{kind}" for kind in UNSHARED]
    options += ["--die-with-parent", "--new-session", "--as-pid-1", "--clearenv"]
    options += ["--uid", str(INSIDE_ID), "--gid", str(INSIDE_ID), "--hostname", "sandbox"]
    options += ["--cap-drop", "ALL"]
    for name in _CAPABILITIES:
        options += ["--cap-add", name]
    # Else some that bubblewrap makes on its own way down are for one user alone.
    for path in _parents([*_ETC, *_FILES, _ARCHIVE, ROOT, *(target for _, target in binds)]):
        options += ["--perms", "0755", "--dir", path]
    options += read_only(_ETC, binds, system_packages=False)
    # Devices one by one: --dev would add a second user namespace and take our capability.
    options += ["--proc", "/proc", "--tmpfs", "/dev"]
    for path in _DEVICES:
        options += ["--dev-bind", path, path]
    for name, target in LINKS.items():
        options += ["--symlink", target, f"/dev/{name}"]
    options += ["--perms", "0755", "--dir", ROOT]
    for path, fd in (*file_fds.items(), (_ARCHIVE, archive_fd)):
        options += ["--perms", "0444", "--ro-bind-data", str(fd), path]
    return [*options, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/"]


def _parents(paths: Sequence[str]) -> list[str]:
    """Return the directories above, each after those above it."""
    above = {str(parent) for path in paths for parent in Path(path).parents}
    return sorted(above - {"/"})
