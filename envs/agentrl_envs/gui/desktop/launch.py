"""What starts a desktop: its first process in bubblewrap, in a cgroup, on leases."""

import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from agentrl.errors import ConfigError
from agentrl_envs.gui.desktop.settings import DesktopSettings
from agentrl_sandbox import confine, enter
from agentrl_sandbox.cgroup import Group
from agentrl_sandbox.launch.launcher import Log
from agentrl_sandbox.launch.users import own_block
from agentrl_sandbox.lease import Lease, new_mark
from agentrl_sandbox.program import bounded, bubblewrap_options, doors

HOME = "/home/user"
PYTHON = "/usr/bin/python3"
"""Debian's own: python3-gi and python3-xlib are there and not in our environment."""
INSTALL = (
    "apt-get install --no-install-recommends at-spi2-core bubblewrap dbus-daemon fonts-dejavu-core "
    "gir1.2-gtk-3.0 jwm python3-gi python3-xlib x11-xkb-utils xvfb"
)
_INSIDE = "agentrl_envs.gui.inside"
_BORROWED = ("agentrl_sandbox", "agentrl_sandbox/inside")
_ARCHIVE = "/opt/desktop/agent.zip"
_FILES_SHARE = 4
"""One part in so many of a desktop's memory may be its files, in each place for them."""
_ENVIRON = {
    "PATH": "/usr/bin:/bin:/usr/games:/run/desktop/bin",
    "LANG": "C.UTF-8",
    "USER": "user",
    "LOGNAME": "user",
    "SHELL": "/bin/bash",
    "XDG_CONFIG_DIRS": "/run/desktop/etc:/etc/xdg",
    # Programs keep their settings in files, which a checker can read.
    "GSETTINGS_BACKEND": "keyfile",
    "GTK_A11Y": "atspi",
    "GDK_BACKEND": "x11",
    "NO_AT_BRIDGE": "0",
    "LIBGL_ALWAYS_SOFTWARE": "1",
    "PS1": "$ ",
}


@dataclass(frozen=True, slots=True)
class Started:
    """The first process of a desktop, and what is held for it."""

    process: subprocess.Popen[bytes]
    log: Log
    lease: Lease
    group: Group | None

    def clear(self) -> None:
        """Kill it and whatever is left of it. Idempotent; it blocks, for seconds at most."""
        self.process.kill()
        self.lease.clear()
        self.process.wait()
        self.log.close()
        if self.group is not None:
            self.group.remove()


@cache
def archive() -> bytes:
    """Return the code of the first process, in one zip."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("__main__.py", f"from {_INSIDE}.agent import main\n\nmain()\n")
        for package in ("agentrl_envs", "agentrl_envs/gui", *_BORROWED):
            made.writestr(f"{package}/__init__.py", "")
        frames = files("agentrl_sandbox") / "inside" / "frames.py"
        made.writestr("agentrl_sandbox/inside/frames.py", frames.read_bytes())
        for source in (files("agentrl_envs.gui") / "inside").iterdir():
            if source.name.endswith(".py"):
                made.writestr(f"agentrl_envs/gui/inside/{source.name}", source.read_bytes())
    return buffer.getvalue()


@dataclass(frozen=True, slots=True)
class Prepared:
    """A desktop that can be started, and what is held for it."""

    command: list[str]
    code: int
    """The descriptor that its first process needs."""
    lease: Lease
    group: Group | None

    def clear(self) -> None:
        """Let go of all of it, when it was not started. It blocks, for seconds at most."""
        os.close(self.code)
        self.lease.clear()
        if self.group is not None:
            self.group.remove()


def prepare(settings: DesktopSettings) -> Prepared:
    """Prepare one more desktop. It blocks; `ConfigError` where none can be run."""
    bubblewrap = shutil.which("bwrap")
    for program in ("Xvfb", "jwm", "dbus-daemon", PYTHON):
        if shutil.which(program) is None or bubblewrap is None:
            raise ConfigError(f"no desktop can be run without {program} in bwrap; {INSTALL}")
    lease = Lease.take("process", f"desktop-{new_mark()}")
    group = bounded("desktop", settings.memory_bytes, settings.processes)
    code = os.memfd_create("desktop")
    os.write(code, archive())
    os.lseek(code, 0, os.SEEK_SET)
    more = ["--as-pid-1", "--ro-bind-data", f"{code}", _ARCHIVE, "--dir", "/tmp/.X11-unix"]
    more += ["--ro-bind-try", *["/var/cache/fontconfig"] * 2]
    for name in ("passwd", "group", "machine-id", "chromium"):
        more += ["--symlink", f"/run/desktop/etc/{name}", f"/etc/{name}"]
    options = bubblewrap_options(
        [],
        writable_bytes=settings.memory_bytes // _FILES_SHARE,
        environ={**_ENVIRON, **lease.environ},
        host_name="desktop",
        writable=("/dev/shm", "/run/desktop", "/tmp", HOME),
        more=more,
    )
    size = [f"{settings.width}", f"{settings.height}", f"{settings.open_s}"]
    size.append(f"{settings.processes}")
    inside = {
        "user_id": own_block().start if os.geteuid() == 0 else None,
        "users": None,
        "stage": {},
        "program": bubblewrap,
        "options": [*options, PYTHON, "-I", "-B", _ARCHIVE, *size],
    }
    plan = {"cgroups": doors(group), "enter": enter.__file__, "bubblewrap": inside}
    command = [sys.executable, "-I", "-S", confine.__file__, json.dumps(plan)]
    return Prepared(command, code, lease, group)
