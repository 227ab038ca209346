"""A desktop of an image's programs, in a container without a network.

The engine takes part in its start and its end. In between, its first process answers over a socket
that it was handed, and no other process in there has.
"""

import os
import secrets
import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl.runtime.cgroup_place import memory_directory
from agentrl_envs.gui.desktop.launch import (
    ARCHIVE,
    CODE,
    ENVIRON,
    HOME,
    HOST_NAME,
    PYTHON,
    WRITABLE,
    build_archive,
    files_bytes,
    list_arguments,
)
from agentrl_envs.gui.desktop.settings import DesktopSettings
from agentrl_envs.gui.inside import config
from agentrl_sandbox.inside import syscalls
from agentrl_sandbox.launch.contained import SandboxContainer, start_in_thread
from agentrl_sandbox.launch.container import (
    OOM_SCORE,
    SOCKET,
    EngineMachine,
    filter_of,
    names_in,
    read_only_binds,
    user_id,
)
from agentrl_sandbox.launch.launcher import LauncherLog
from agentrl_sandbox.launch.users import draw_block
from agentrl_sandbox.lease import labels, new_mark
from agentrl_sandbox.recipe import RECIPES

_ETC = ("passwd", "group", "machine-id")
"""Files of the identity of a desktop: the same on every one."""
_NO_NAMES = "resolv.conf"
_HIDDEN = (
    *("/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats"),
    *("/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats", "/sys"),
)
"""Paths that the engine would hide by itself, and all of /sys."""
_BROWSER_CALLS = ("chroot",)
"""Called by Chromium's sandbox, in a user namespace of its own."""


class DesktopContainer:
    """A desktop in a container, from before it is made until it is gone."""

    def __init__(self, settings: DesktopSettings) -> None:
        self._settings = settings
        etc = {name: config.FILES[f"etc/{name}"].encode() for name in _ETC}
        self._contained = SandboxContainer(
            {ARCHIVE: build_archive("container"), _NO_NAMES: b"", **etc}
        )

    @property
    def pid(self) -> int:
        return self._contained.process

    @property
    def log(self) -> LauncherLog:
        return self._contained.log

    def run(self, control: socket.socket, stop: threading.Event) -> None:
        """Make and start it; `ConfigError` without an engine or image, else `SandboxError`."""
        self._contained.make(RECIPES["desktop"].image(self._settings.image), self._body)
        self._contained.run(control, stop)

    def _body(self, machine: EngineMachine) -> Mapping[str, Any]:
        has_block = os.geteuid() == 0 and not machine.maps_users
        return build_container(
            self._settings,
            user=draw_block().start if has_block else user_id(machine, secrets.randbits(32)),
            home=self._contained.home.path,
            labels=labels(new_mark()),
        )

    def memory_bytes(self) -> int | None:
        directory = memory_directory(self.pid)
        for name in ("memory.usage_in_bytes", "memory.current"):
            if directory and (file := Path(directory, name)).exists():
                return int(file.read_text())
        return None

    def clear(self) -> None:
        self._contained.discard()

    def discard(self) -> None:
        self.clear()


async def start(settings: DesktopSettings, control: socket.socket) -> DesktopContainer:
    """Start a desktop whose first process has `control`.

    `ConfigError` without an engine or the image, `SandboxError` when the engine fails.
    """
    return await start_in_thread(
        lambda: DesktopContainer(settings), lambda made, stop: made.run(control, stop)
    )


def build_profile() -> str:
    """Return the filter of system calls, in the engine's language.

    Programs may call what a session's may, and beside that share memory, watch files and make user
    namespaces. Nobody mounts, and nobody calls what reaches deep into the kernel.
    """
    tables = (syscalls.ALLOWED, syscalls.RULED, syscalls.HARMLESS, syscalls.ABSENT)
    return filter_of({*names_in(*tables), *_BROWSER_CALLS})


def build_container(
    settings: DesktopSettings, *, user: int, home: str, labels: Mapping[str, str]
) -> dict[str, Any]:
    """Return the body of the engine's `POST /containers/create`.

    `home` is the directory on the host with the files it is given; `user` is who it is outside.
    """
    size = f"size={files_bytes(settings)},exec,uid={user},gid={user}"
    paths = [(name, f"/etc/{name}") for name in (*_ETC, _NO_NAMES)]
    environ = {"HOME": HOME, "TMPDIR": "/tmp", "TZ": "UTC", **ENVIRON}
    return {
        "Image": settings.image,
        "Entrypoint": [PYTHON, "-I", "-B", f"{CODE}/{ARCHIVE}", f"{CODE}/{SOCKET}"],
        "Cmd": list_arguments(settings),
        "Env": [f"{name}={value}" for name, value in environ.items()],
        "User": f"{user}:{user}",
        "WorkingDir": HOME,
        "Hostname": HOST_NAME,
        "Labels": dict(labels),
        "Healthcheck": {"Test": ["NONE"]},
        "AttachStderr": True,
        "HostConfig": {
            "NetworkMode": "none",
            "ReadonlyRootfs": True,
            "CapDrop": ["ALL"],
            "IpcMode": "private",
            "CgroupnsMode": "private",
            "MaskedPaths": [*_HIDDEN],
            # SELinux's labels would deny the host's socket.
            "SecurityOpt": ["no-new-privileges", f"seccomp={build_profile()}", "label=disable"],
            "Memory": settings.memory_bytes,
            "MemorySwap": settings.memory_bytes,
            "PidsLimit": settings.processes,
            "OomScoreAdj": OOM_SCORE,
            "Ulimits": [{"Name": "core", "Soft": 0, "Hard": 0}],
            "AutoRemove": True,
            "Init": False,
            "LogConfig": {"Type": "none", "Config": {}},
            "ShmSize": files_bytes(settings),
            "Tmpfs": dict.fromkeys(WRITABLE, f"{size},mode=700"),
            "Mounts": read_only_binds(
                [(home, CODE), *[(f"{home}/{name}", path) for name, path in paths]]
            ),
        },
    }
