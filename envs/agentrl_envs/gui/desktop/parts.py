"""Parts that desktops need on this machine: rows of `agentrl doctor`."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator

from agentrl.errors import AgentrlError
from agentrl.runtime.doctor import ProbedPart
from agentrl_envs.gui.desktop.launch import INSTALL, PYTHON
from agentrl_sandbox.launch.engine import INSTALL_ENGINE, INSTALL_SDK, DockerEngine
from agentrl_sandbox.recipe import PROGRAMS, RECIPES

NEEDED = ("bwrap", "Xvfb", "xkbcomp", "jwm", "dbus-daemon", PYTHON)
BUS_LAUNCHER = "/usr/libexec/at-spi-bus-launcher"
INSTALL_PROGRAMS = f"apt-get install --no-install-recommends {' '.join(PROGRAMS)}"
_ASK_S = 20.0
_MODULES = "import gi, Xlib; gi.require_version('Gtk', '3.0')"


def parts() -> tuple[ProbedPart, ...]:
    """Return the parts of desktops, here and in an image. No desktop is started."""
    return (*probe_own_parts(), probe_image())


def probe_own_parts() -> tuple[ProbedPart, ProbedPart]:
    """Return the parts of a desktop on this machine, and the programs on it."""
    missing = _find_missing_screen_parts()
    screen = ProbedPart("desktop", not missing, _describe(missing, "Xvfb, jwm, AT-SPI"), INSTALL)
    absent = _find_absent(PROGRAMS)
    programs = ProbedPart(
        "desktop programs", not absent, _describe(absent, ", ".join(PROGRAMS)), INSTALL_PROGRAMS
    )
    return screen, programs


def find_missing_parts(programs: Iterable[str]) -> Iterator[str]:
    """Yield the parts that a desktop with some programs on it lacks here, a sentence each."""
    if missing := _find_missing_screen_parts():
        yield f"no desktop can be run without {', '.join(missing)}: {INSTALL}"
    if absent := _find_absent(programs):
        names = ", ".join(absent)
        yield (
            f"the tasks use programs that are not installed ({names}): apt-get install "
            f"--no-install-recommends {' '.join(absent)}"
        )


def probe_image() -> ProbedPart:
    """Return whether the engine has the image of desktops."""
    image = RECIPES["desktop"].image(RECIPES["desktop"].tag)
    get_it = f"{INSTALL_SDK}; {INSTALL_ENGINE}; {image.build}"
    try:
        with contextlib.closing(DockerEngine()) as engine:
            engine.check_image(image)
    except AgentrlError as error:
        return ProbedPart("desktop image", False, str(error).partition(";")[0], get_it)
    return ProbedPart("desktop image", True, image.tag, get_it)


def _find_missing_screen_parts() -> list[str]:
    missing = _find_absent(NEEDED)
    if not os.access(BUS_LAUNCHER, os.X_OK):
        missing.append(BUS_LAUNCHER)
    if PYTHON not in missing and not _has_modules():
        missing.append(f"gi, Gtk 3.0 or Xlib of {PYTHON}")
    return missing


def _find_absent(programs: Iterable[str]) -> list[str]:
    return [name for name in programs if shutil.which(name) is None]


def _describe(missing: list[str], there: str) -> str:
    return f"missing: {', '.join(missing)}" if missing else there


def _has_modules() -> bool:
    command = [PYTHON, "-I", "-c", _MODULES]
    try:
        return subprocess.run(command, capture_output=True, timeout=_ASK_S).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
