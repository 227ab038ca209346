"""What this machine has to run desktops with: rows of `agentrl doctor`."""

import os
import shutil
import subprocess

from agentrl.doctor import Found
from agentrl_envs.gui.desktop.launch import INSTALL, PYTHON

NEEDED = ("bwrap", "Xvfb", "xkbcomp", "jwm", "dbus-daemon", PYTHON)
BUS_LAUNCHER = "/usr/libexec/at-spi-bus-launcher"
PROGRAMS = (
    "chromium",
    "mousepad",
    "galculator",
    "gnumeric",
    "thunar",
    "lxterminal",
    "xterm",
    "yad",
)
"""Programs that the tasks are done in, by the names of their packages too."""
INSTALL_PROGRAMS = f"apt-get install --no-install-recommends {' '.join(PROGRAMS)}"
_ASK_S = 20.0
_MODULES = "import gi, Xlib; gi.require_version('Gtk', '3.0')"


def parts() -> tuple[Found, ...]:
    """Return what a desktop is made of, and the programs on it. No desktop is started."""
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if not os.access(BUS_LAUNCHER, os.X_OK):
        missing.append(BUS_LAUNCHER)
    if PYTHON not in missing and not _has_modules():
        missing.append(f"gi, Gtk 3.0 or Xlib of {PYTHON}")
    screen = Found("desktop", not missing, _listed(missing, "Xvfb, jwm, AT-SPI"), INSTALL)
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    programs = Found(
        "desktop programs", not absent, _listed(absent, ", ".join(PROGRAMS)), INSTALL_PROGRAMS
    )
    return screen, programs


def _listed(missing: list[str], there: str) -> str:
    return f"missing: {', '.join(missing)}" if missing else there


def _has_modules() -> bool:
    command = [PYTHON, "-I", "-c", _MODULES]
    try:
        return subprocess.run(command, capture_output=True, timeout=_ASK_S).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
