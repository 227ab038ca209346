"""Parts of a desktop that every back-end starts: its code, its surroundings, its sizes."""

import io
import zipfile
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Literal, Protocol

from agentrl_envs.gui.desktop.settings import DesktopSettings
from agentrl_sandbox.launch.launcher import LauncherLog
from agentrl_sandbox.recipe import DESKTOP

HOME = "/home/user"
HOST_NAME = "desktop"
WRITABLE = ("/run/desktop", "/tmp", HOME)
"""Directories where files can be made, beside shared memory."""
PYTHON = "/usr/bin/python3"
"""Debian's own: python3-gi and python3-xlib are there and not in our environment."""
CODE = "/opt/desktop"
ARCHIVE = "agent.zip"
"""Name of the archive in CODE."""
INSTALL = f"apt-get install --no-install-recommends bubblewrap {' '.join(DESKTOP)}"
_INSIDE = "agentrl_envs.gui.inside"
_BORROWED = ("arrival", "frames", "kernel")
"""Modules of `agentrl_sandbox.inside`."""
_FILES_SHARE = 4
ENVIRON: Mapping[str, str] = {
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


class DesktopProcess(Protocol):
    """The first process of a desktop, and what is held for it."""

    @property
    def pid(self) -> int:
        """Its process here: everything on the desktop is below it."""
        ...

    @property
    def log(self) -> LauncherLog:
        """Log of the first process."""
        ...

    def memory_bytes(self) -> int | None:
        """Return the memory that the desktop holds, where a cgroup counts it."""
        ...

    def clear(self) -> None:
        """Kill it and whatever is left of it. Idempotent; it blocks, for seconds at most.

        `SandboxError` when something stays, which the reaper goes on with.
        """
        ...


@cache
def build_archive(main: Literal["server", "container"]) -> bytes:
    """Return the code of the first process, in one zip that runs `main` of a module."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as zip_file:
        zip_file.writestr("__main__.py", f"from {_INSIDE}.{main} import main\n\nmain()\n")
        for package in ("agentrl_envs", "agentrl_envs/gui", "agentrl_sandbox"):
            zip_file.writestr(f"{package}/__init__.py", "")
        zip_file.writestr("agentrl_sandbox/inside/__init__.py", "")
        for name in _BORROWED:
            source = files("agentrl_sandbox") / "inside" / f"{name}.py"
            zip_file.writestr(f"agentrl_sandbox/inside/{name}.py", source.read_bytes())
        for source in (files("agentrl_envs.gui") / "inside").iterdir():
            if source.name.endswith(".py"):
                zip_file.writestr(f"agentrl_envs/gui/inside/{source.name}", source.read_bytes())
    return buffer.getvalue()


def files_bytes(settings: DesktopSettings) -> int:
    """Return the most memory of a desktop for its files, in each place for them."""
    return settings.memory_bytes // _FILES_SHARE


def list_arguments(settings: DesktopSettings) -> list[str]:
    """Return the arguments of the first process."""
    values = (settings.width, settings.height, settings.open_s, settings.processes)
    return [f"{one}" for one in values]
