"""Start of a supervisor: one launcher per back-end.

launcher.py     what a launcher and what it started have to offer
namespaces.py   namespaces that we make (with ../isolate.py in between)
bubblewrap.py   namespaces through bubblewrap (with ../enter.py in between)
shown.py        what both show of this machine (../root.py: all they are made of)
forbidden.py    why a machine lets nobody do that
users.py        the user ids that a supervisor and its sessions may have
local.py        a child process of ours: isolated, or bare when the user says so
docker.py       a hardened container (container.py: its settings, engine.py: the engine)
"""

import shutil

from agentrl.errors import ConfigError
from agentrl.sandbox import SandboxSettings
from agentrl_sandbox.launch.bubblewrap import INSTALL, BubblewrapLauncher
from agentrl_sandbox.launch.launcher import (
    ForkServerLauncher,
    LauncherLog,
    StartedForkServer,
    packages_directory,
)
from agentrl_sandbox.launch.local import ProcessLauncher
from agentrl_sandbox.launch.namespaces import NamespaceLauncher

__all__ = ["INSTALL", "ForkServerLauncher", "LauncherLog", "StartedForkServer", "launcher"]


def launcher(settings: SandboxSettings) -> ForkServerLauncher:
    """Return the launcher of a back-end; `ConfigError` when it may not or cannot be used.

    Whether an engine of containers answers and has the image is only asked at the first start.
    """
    packages = packages_directory(settings.packages)
    if settings.backend == "process":
        if not settings.allow_unisolated:
            raise ConfigError(
                "sandbox.backend is 'process', which runs model-written code as your user, with "
                "access to your files and network; set sandbox.allow_unisolated: true to accept "
                "that, or set sandbox.backend: namespaces, which isolates"
            )
        return ProcessLauncher(packages)
    if settings.backend == "docker":
        from agentrl_sandbox.launch.docker import DockerLauncher

        return DockerLauncher(settings, packages)
    if settings.backend == "namespaces":
        return NamespaceLauncher(packages)
    if (path := shutil.which("bwrap")) is None:
        raise ConfigError(
            "sandbox.backend is 'bubblewrap', but there is no bwrap on PATH; install it "
            f"({INSTALL}), or set sandbox.backend: namespaces, which needs no extra program"
        )
    return BubblewrapLauncher(path, packages)
