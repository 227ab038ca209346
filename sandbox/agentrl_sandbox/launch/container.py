"""Limits of a container of sandboxes: decided here, carried out by `docker.py`.

Every session in a container has limits of its own. The container's bound what all of them use
together, whatever they do: a share of the sessions the pool may open, never more than its share of
what the machine can spare.
"""

import errno
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.errors import ConfigError
from agentrl.sandbox import SandboxSettings
from agentrl_sandbox.inside import syscalls

ROOT = "/home/agent"
PACKAGES = "/packages"
HOME = "/run/agentrl"
"""Path inside of the directory with the archive and the socket."""
ARCHIVE, SOCKET = "inside.zip", "socket"

SESSION_BYTES = 16 * 2**20
"""Memory of a session besides its limits: its keeper, its page tables, output being read."""
SUPERVISOR_BYTES = 128 * 2**20
_SESSION_PROCESSES = 3
"""Its keeper, and whoever starts or reads for it."""
_SUPERVISOR_PROCESSES = 16
OOM_SCORE = 500
"""When the machine itself runs out of memory, sandboxes go before the trainer."""
_OF_SUPERVISOR = (
    *("mount", "umount2", "mount_setattr", "open_tree", "move_mount"),
    *("fsopen", "fsconfig", "fsmount"),
    *("setns", "chroot", "memfd_create"),
)
"""System calls of the supervisor that no interpreter may make."""
_USER_IDS = range(2**30, 2**30 + 2**24)
"""User ids that belong to nobody."""
_MAPPED_USER_ID = 1000
"""For an engine that has only a range of user ids, and maps them to nobody's by itself."""


@dataclass(frozen=True, slots=True)
class EngineMachine:
    """Machine of the engine, as the engine describes it."""

    memory_bytes: int
    cores: int
    security: tuple[str, ...] = ()
    """As `docker info` has them: `name=seccomp,profile=default`."""
    missing: tuple[str, ...] = ()
    """Limits that it cannot enforce."""

    @classmethod
    def from_info(cls, info: Mapping[str, Any]) -> "EngineMachine":
        """Return the machine that an answer of `GET /info` describes."""
        limits = {"MemoryLimit": "memory", "PidsLimit": "pids", "CpuCfsQuota": "cpu"}
        return cls(
            memory_bytes=int(info["MemTotal"]),
            cores=int(info["NCPU"]),
            security=tuple(info.get("SecurityOptions") or ()),
            missing=tuple(name for key, name in limits.items() if not info.get(key, True)),
        )

    @property
    def maps_users(self) -> bool:
        """Whether user ids inside are others outside."""
        return any(option in ("name=rootless", "name=userns") for option in self.security)


def check_machine(machine: EngineMachine) -> None:
    """Raise `ConfigError` for an engine that would drop what isolates."""
    if machine.missing:
        raise ConfigError(
            f"the Docker engine cannot limit {' and '.join(machine.missing)} here, so a container "
            "could exhaust the machine; run the engine as root, delegate the controllers to it "
            "(cgroup v2), or use sandbox.backend: namespaces"
        )
    if not any(option.startswith("name=seccomp") for option in machine.security):
        raise ConfigError(
            "the Docker engine has no seccomp here, so a container could reach too much of the "
            "kernel; use an engine and a kernel with seccomp, or sandbox.backend: namespaces"
        )


def memory_bytes(settings: SandboxSettings, machine: EngineMachine) -> int:
    """Return the memory that one container may use, its files included.

    Its share of the sessions at their limits (memory and disk, which is memory too), but no more
    than its share of the machine without `free_memory_bytes`, and never less than one session.
    """
    limits, pressure = settings.limits, settings.pressure
    one = limits.memory_bytes + limits.disk_bytes + SESSION_BYTES
    demand_bytes = SUPERVISOR_BYTES + one * _share(pressure.sessions, settings.supervisors)
    spare = (machine.memory_bytes - pressure.free_memory_bytes) // settings.supervisors
    return max(SUPERVISOR_BYTES + one, min(demand_bytes, spare))


def processes(settings: SandboxSettings) -> int:
    """Return the number of processes and threads that one container may hold."""
    one = settings.limits.processes + _SESSION_PROCESSES
    return _SUPERVISOR_PROCESSES + one * _share(settings.pressure.sessions, settings.supervisors)


def cores(settings: SandboxSettings, machine: EngineMachine) -> int:
    """Return the number of cores that one container may keep busy: at most one per running cell."""
    return min(machine.cores, _share(settings.pressure.cells, settings.supervisors))


def _share(count: int, of: int) -> int:
    return max(1, -(-count // of))


def user_id(machine: EngineMachine, drawn: int) -> int:
    """Return the user of a container, by a number that was drawn at random."""
    return _MAPPED_USER_ID if machine.maps_users else _USER_IDS[drawn % len(_USER_IDS)]


def profile() -> str:
    """Return the filter of system calls for a container with a supervisor.

    It lets the supervisor make namespaces and mount in them. An interpreter has its own filter on
    top, which refuses that as well and looks at arguments.
    """
    tables = (syscalls.ALLOWED, syscalls.RULED, syscalls.HARMLESS)
    # Refused with EPERM, as all the others, it would end the program: this way clone is called.
    return filter_of({*names_in(*tables), *_OF_SUPERVISOR}, absent=("clone3",))


def names_in(*tables: syscalls.Table) -> frozenset[str]:
    """Return the names of the calls in some tables."""
    return frozenset(name for table in tables for calls in table.values() for name in calls)


def filter_of(allowed: Iterable[str], *, absent: Sequence[str] = ()) -> str:
    """Return a filter of system calls, in the engine's language.

    Those that are not allowed are not permitted, and those that are `absent` no kernel knows.
    """
    rules: list[dict[str, Any]] = [{"names": sorted(allowed), "action": "SCMP_ACT_ALLOW"}]
    if absent:
        no_such_call = {"action": "SCMP_ACT_ERRNO", "errnoRet": errno.ENOSYS}
        rules.append({"names": [*absent], **no_such_call})
    return json.dumps({"defaultAction": "SCMP_ACT_ERRNO", "syscalls": rules})


def container(
    settings: SandboxSettings,
    machine: EngineMachine,
    *,
    user: int,
    home: str,
    packages: str,
    labels: Mapping[str, str],
) -> dict[str, Any]:
    """Return the body of the engine's `POST /containers/create`."""
    inside = f"{HOME}/{ARCHIVE}"
    return {
        "Image": settings.image,
        "Entrypoint": ["python3", "-I", "-S", "-X", "utf8", inside, f"{HOME}/{SOCKET}"],
        "Cmd": [],
        "User": f"{user}:{user}",
        "WorkingDir": "/",
        "Hostname": "sandbox",
        "Labels": dict(labels),
        "Healthcheck": {"Test": ["NONE"]},
        "AttachStderr": True,
        "HostConfig": {
            **_isolation(),
            **_resources(settings, machine),
            "AutoRemove": True,
            "Init": False,
            "LogConfig": {"Type": "none", "Config": {}},
            "Mounts": read_only_binds(
                [(home, HOME), *([(packages, PACKAGES)] if packages else [])]
            ),
            "Tmpfs": {ROOT: "size=4k,mode=755"},
        },
    }


def _isolation() -> dict[str, Any]:
    # The supervisor mounts a /proc of its own, which the kernel allows to those who see all of it.
    # AppArmor's profile for containers would deny every mount, and SELinux's the host's socket.
    return {
        "NetworkMode": "none",
        "ReadonlyRootfs": True,
        "CapDrop": ["ALL"],
        "IpcMode": "none",
        "CgroupnsMode": "private",
        "MaskedPaths": [],
        "ReadonlyPaths": [],
        "SecurityOpt": [
            "no-new-privileges",
            f"seccomp={profile()}",
            "apparmor=unconfined",
            "label=disable",
        ],
    }


def _resources(settings: SandboxSettings, machine: EngineMachine) -> dict[str, Any]:
    memory = memory_bytes(settings, machine)
    return {
        "Memory": memory,
        "MemorySwap": memory,
        "PidsLimit": processes(settings),
        "NanoCpus": cores(settings, machine) * 10**9,
        "OomScoreAdj": OOM_SCORE,
        "Ulimits": [{"Name": "core", "Soft": 0, "Hard": 0}],
    }


def read_only_binds(binds: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    return [
        {"Type": "bind", "Source": source, "Target": target, "ReadOnly": True}
        for source, target in binds
    ]
