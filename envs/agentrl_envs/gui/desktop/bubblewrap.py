"""A desktop of this machine's own programs: its first process in bubblewrap, in a cgroup."""

import json
import os
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
from functools import partial

from agentrl.errors import ConfigError
from agentrl.runtime.threads import make_in_thread, run_in_thread
from agentrl_envs.gui.desktop.launch import (
    ARCHIVE,
    CODE,
    ENVIRON,
    HOST_NAME,
    INSTALL,
    PYTHON,
    WRITABLE,
    build_archive,
    files_bytes,
    list_arguments,
)
from agentrl_envs.gui.desktop.settings import DesktopSettings
from agentrl_sandbox import confine, enter
from agentrl_sandbox.cgroup import ProcessCgroup
from agentrl_sandbox.launch.launcher import LauncherLog
from agentrl_sandbox.launch.local import start_process
from agentrl_sandbox.launch.users import draw_block
from agentrl_sandbox.lease import ResourceLease, new_mark
from agentrl_sandbox.program import bubblewrap_options, make_cgroup


@dataclass(frozen=True, slots=True)
class BubblewrapDesktop:
    """A desktop whose first process is a child of ours."""

    process: subprocess.Popen[bytes]
    log: LauncherLog
    lease: ResourceLease
    group: ProcessCgroup | None

    @property
    def pid(self) -> int:
        return self.process.pid

    def memory_bytes(self) -> int | None:
        return None if self.group is None else self.group.memory_bytes()

    def clear(self) -> None:
        self.process.kill()
        self.lease.clear()
        self.process.wait()
        self.log.close()
        if self.group is not None:
            self.group.remove()


async def start(settings: DesktopSettings, control: socket.socket) -> BubblewrapDesktop:
    """Start a desktop whose first process has `control`. `ConfigError` where none can be run."""
    prepared = await make_in_thread(partial(prepare, settings), PreparedDesktop.clear)
    log = LauncherLog()
    try:
        # On this thread: the program is killed with the one that starts it.
        process = start_process(prepared.command, control, log, (prepared.code,))
    except BaseException:
        log.close()
        await run_in_thread(prepared.clear)
        raise
    os.close(prepared.code)
    return BubblewrapDesktop(process, log, prepared.lease, prepared.group)


@dataclass(frozen=True, slots=True)
class PreparedDesktop:
    """A desktop that can be started, and what is held for it."""

    command: list[str]
    code: int
    """The descriptor that its first process needs."""
    lease: ResourceLease
    group: ProcessCgroup | None

    def clear(self) -> None:
        """Let go of all of it, when it was not started. It blocks, for seconds at most."""
        os.close(self.code)
        self.lease.clear()
        if self.group is not None:
            self.group.remove()


def prepare(settings: DesktopSettings) -> PreparedDesktop:
    """Prepare one more desktop. It blocks; `ConfigError` where none can be run."""
    bubblewrap = shutil.which("bwrap")
    for program in ("Xvfb", "jwm", "dbus-daemon", PYTHON):
        if shutil.which(program) is None or bubblewrap is None:
            raise ConfigError(
                f"{program}, which desktops need, is not available in bwrap; {INSTALL}"
            )
    lease = ResourceLease.take("process", f"desktop-{new_mark()}")
    group = make_cgroup("desktop", settings.memory_bytes, settings.processes)
    code = os.memfd_create("desktop")
    os.write(code, build_archive("server"))
    os.lseek(code, 0, os.SEEK_SET)
    path = f"{CODE}/{ARCHIVE}"
    more = ["--as-pid-1", "--ro-bind-data", f"{code}", path, "--dir", "/tmp/.X11-unix"]
    more += ["--ro-bind-try", *["/var/cache/fontconfig"] * 2]
    for name in ("passwd", "group", "machine-id", "chromium"):
        more += ["--symlink", f"/run/desktop/etc/{name}", f"/etc/{name}"]
    options = bubblewrap_options(
        [],
        writable_bytes=files_bytes(settings),
        environ={**ENVIRON, **lease.environ},
        host_name=HOST_NAME,
        writable=("/dev/shm", *WRITABLE),
        more=more,
    )
    inside = {
        "user_id": draw_block().start if os.geteuid() == 0 else None,
        "users": None,
        "stage": {},
        "program": bubblewrap,
        "options": [*options, PYTHON, "-I", "-B", path, *list_arguments(settings)],
    }
    cgroups = [] if group is None else group.join_files()
    plan = {"cgroups": cgroups, "enter": enter.__file__, "bubblewrap": inside}
    command = [sys.executable, "-I", "-S", confine.__file__, json.dumps(plan)]
    return PreparedDesktop(command, code, lease, group)
