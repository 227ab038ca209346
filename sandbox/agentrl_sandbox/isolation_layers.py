"""Isolation layers of this machine: the rows of `agentrl doctor`. Probing changes nothing."""

import contextlib
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from agentrl.errors import AgentrlError, ConfigError, SandboxError
from agentrl.runtime.cgroup_place import find_own_cgroup
from agentrl.sandbox import SandboxSettings
from agentrl_sandbox.cgroup import explain_no_cgroups
from agentrl_sandbox.inside import landlock, seccomp, syscall_listener
from agentrl_sandbox.launch import INSTALL, NamespaceLauncher
from agentrl_sandbox.launch.engine import (
    BUILD,
    INSTALL_ENGINE,
    INSTALL_SDK,
    ContainerImage,
    DockerEngine,
)
from agentrl_sandbox.launch.forbidden import explain_ways_out
from agentrl_sandbox.launch.users import LEND_IDS
from agentrl_sandbox.needs import explain_trial_error

_PROBE_S = 5.0
_NAMESPACES, _USERS = "user namespaces", "user id per session"
_GET_DOCKER = f"{INSTALL_SDK}; {INSTALL_ENGINE}; {BUILD}"
_CGROUP_GET_IT = {
    1: "run as root, or have root make a directory in /sys/fs/cgroup/memory and in .../pids, "
    "chown -R both to you and write your shell's process id into their cgroup.procs",
    2: "systemd-run --user --scope -p Delegate=yes COMMAND",
}


@dataclass(frozen=True, slots=True)
class IsolationLayer:
    """One layer of isolation."""

    name: str
    live: bool
    detail: str
    get_it: str
    """The command that installs or enables it."""


def layers() -> tuple[IsolationLayer, ...]:
    """Return every layer agentrl can use, live or not."""
    kernel_layers = (*_namespaces(), _seccomp(), _landlock())
    return (*kernel_layers, *_cgroups(), _bubblewrap(), _docker())


def _namespaces() -> tuple[IsolationLayer, IsolationLayer]:
    """Return whether a sandbox can be made, and with how many users."""
    get_it, more = explain_ways_out(), f"run as root, or {LEND_IDS}"
    try:
        ids = NamespaceLauncher().user_ids(_PROBE_S)
    except (AgentrlError, OSError, subprocess.SubprocessError) as error:
        why = str(error) if isinstance(error, AgentrlError) else explain_trial_error(error)
        users = IsolationLayer(_USERS, False, "nothing can be isolated", more)
        return IsolationLayer(_NAMESPACES, False, why, get_it), users
    detail = "user, mount, process, network, IPC and host name namespaces"
    shared = "all sessions of a pool share one"
    users = IsolationLayer(
        _USERS, ids > 1, f"{ids - 1} ids for each fork server" if ids > 1 else shared, more
    )
    return IsolationLayer(_NAMESPACES, True, detail, get_it), users


def _bubblewrap() -> IsolationLayer:
    detail = "no bwrap on PATH; needed for browsers, desktops, and sandbox.backend: bubblewrap"
    command = ("bwrap", "--version")
    try:
        result = subprocess.run(
            command, capture_output=True, timeout=_PROBE_S, check=True, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError):
        return IsolationLayer("bubblewrap", False, detail, INSTALL)
    version = result.stdout.decode(errors="replace").strip()
    return IsolationLayer("bubblewrap", True, version or detail, INSTALL)


def _seccomp() -> IsolationLayer:
    kernel = Path("/proc/sys/kernel/seccomp/actions_avail").exists()
    table = seccomp.build() is not None
    detail = "allow-list of system calls"
    if not kernel:
        detail = "this kernel has no seccomp filters"
    elif not table:
        detail = f"the system calls of {os.uname().machine} are not supported"
    elif not syscall_listener.is_available():
        detail += "; forks share namespaces (Linux 5.5 or later separates them)"
    return IsolationLayer(
        "seccomp", kernel and table, detail, "use a kernel with CONFIG_SECCOMP_FILTER"
    )


def _landlock() -> IsolationLayer:
    version = landlock.abi()
    detail = f"ABI {version}" if version > 0 else "this kernel has no Landlock"
    if version > 0 and not landlock.scopes(version):
        detail += "; forks can signal each other (Linux 6.12 or later prevents it)"
    return IsolationLayer(
        "landlock", version > 0, detail, "use a kernel with CONFIG_SECURITY_LANDLOCK"
    )


def _cgroups() -> tuple[IsolationLayer, IsolationLayer]:
    """Return a row for each version; at most one of them is used: that with the memory."""
    place, why = find_own_cgroup(), explain_no_cgroups()
    rows: list[IsolationLayer] = []
    for version in (1, 2):
        if place is None or place.version != version:
            detail = "no memory controller on this machine"
        else:
            also = "" if "cpu" in place.directories else ", without cpu"
            detail = why or f"below {place.directories['memory']}{also}"
        live = place is not None and place.version == version and not why
        rows.append(IsolationLayer(f"cgroup v{version}", live, detail, _CGROUP_GET_IT[version]))
    return rows[0], rows[1]


def _docker() -> IsolationLayer:
    try:
        with contextlib.closing(DockerEngine()) as engine:
            engine.check_image(ContainerImage("sandbox.image", SandboxSettings().image))
    except ConfigError as error:
        return IsolationLayer("docker engine", False, str(error).partition(";")[0], _GET_DOCKER)
    except SandboxError as error:
        return IsolationLayer("docker engine", False, str(error), "see the log of dockerd")
    detail = f"has the image {SandboxSettings().image}"
    return IsolationLayer("docker engine", True, detail, _GET_DOCKER)
