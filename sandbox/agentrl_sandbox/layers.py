"""What this machine can isolate with: the rows of `agentrl doctor`. Probing changes nothing."""

import os
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from agentrl_sandbox.inside import seccomp
from agentrl_sandbox.launch import INSTALL

_PROBE_S = 5.0
_LANDLOCK_CREATE_RULESET = 444


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of isolation."""

    name: str
    live: bool
    detail: str
    get_it: str
    """The command that installs or enables it."""


def layers() -> tuple[Layer, ...]:
    """Return every layer agentrl can use, live or not."""
    return (_bubblewrap(), _namespaces(), _seccomp(), _landlock(), *_cgroups(), _docker())


def _run(*command: str) -> str | None:
    """Return a command's output, or None when it cannot run or fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=_PROBE_S, check=True, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace").strip()


def _bubblewrap() -> Layer:
    version = _run("bwrap", "--version")
    return Layer("bubblewrap", version is not None, version or "no bwrap on PATH", INSTALL)


def _namespaces() -> Layer:
    command = ("bwrap", "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "/bin/true")
    live = _run(*command) is not None
    detail = "user, mount, process and network namespaces"
    get_it = "sysctl -w user.max_user_namespaces=10000"
    if Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns").exists():
        get_it = "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
    return Layer("user namespaces", live, detail if live else "refused by this machine", get_it)


def _seccomp() -> Layer:
    kernel = Path("/proc/sys/kernel/seccomp/actions_avail").exists()
    table = seccomp.build() is not None
    detail = "filter of denied system calls"
    if not kernel:
        detail = "this kernel has no seccomp filters"
    elif not table:
        detail = f"no table of system calls for {os.uname().machine}"
    return Layer("seccomp", kernel and table, detail, "use a kernel with CONFIG_SECCOMP_FILTER")


def _landlock() -> Layer:
    probe = (
        "import ctypes; print(ctypes.CDLL(None)"
        f".syscall({_LANDLOCK_CREATE_RULESET}, None, ctypes.c_size_t(0), 1))"
    )
    version = int(_run(sys.executable, "-I", "-S", "-c", probe) or -1)
    detail = f"ABI {version}, not used yet" if version > 0 else "this kernel has no Landlock"
    return Layer("landlock", version > 0, detail, "use a kernel with CONFIG_SECURITY_LANDLOCK")


def _cgroups() -> tuple[Layer, Layer]:
    root = Path("/sys/fs/cgroup")
    rows: list[Layer] = []
    for name, paths in (
        ("cgroup v1", (root / "memory", root / "pids")),
        ("cgroup v2", (root / "cgroup.controllers",)),
    ):
        there = all(path.exists() for path in paths)
        ours = there and os.access(paths[0] if paths[0].is_dir() else root, os.W_OK)
        detail = "writable, not used yet" if ours else "not writable by you" if there else "absent"
        rows.append(Layer(name, ours, detail, "systemd-run --user --scope -p Delegate=yes COMMAND"))
    return rows[0], rows[1]


def _docker() -> Layer:
    path = shutil.which("docker")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_PROBE_S)
        answers = probe.connect_ex("/var/run/docker.sock") == 0
    detail = "the engine answers, not used yet" if answers else "no engine answers"
    if path is None:
        detail += "; no docker on PATH"
    return Layer("docker engine", answers, detail, "apt-get install docker.io")
