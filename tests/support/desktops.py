"""Desktops in tests: their back-ends, and what runs on them."""

from pathlib import Path
from typing import Any

import pytest

from agentrl_envs.gui import GuiEnv
from agentrl_envs.gui.desktop import DesktopSession
from tests.support.processes import family

BUBBLEWRAP = pytest.param("bubblewrap", marks=pytest.mark.gui)
DOCKER = pytest.param("docker", marks=pytest.mark.desktop_image)
BACKENDS = (BUBBLEWRAP, DOCKER)


def desktop_of(env: GuiEnv) -> DesktopSession:
    """Return the desktop of the episode that runs."""
    episode: Any = env._episode  # pyright: ignore[reportPrivateUsage]
    return episode.desktop


def processes_of(env: GuiEnv, name: str) -> list[int]:
    """Return the pids here of the programs on a desktop that are called so, the oldest first."""
    started = desktop_of(env)._process  # pyright: ignore[reportPrivateUsage]
    found: dict[int, int] = {}
    for pid in family(started.pid):
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            since = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
        except OSError:
            continue  # it ended while we looked
        if name in line and "bwrap" not in line and since[0] != "Z":
            found[pid] = int(since[19])
    return sorted(found, key=lambda pid: (found[pid], pid))
