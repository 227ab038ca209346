"""Needs of a config's sandbox, checked before a run begins."""

import contextlib
import subprocess
from collections.abc import Iterator
from typing import TYPE_CHECKING

from agentrl.errors import ConfigError, SandboxError
from agentrl.sandbox import SandboxSettings
from agentrl_sandbox.launch import BubblewrapLauncher, launcher
from agentrl_sandbox.launch.bubblewrap import user_ids
from agentrl_sandbox.launch.engine import Engine, Image

if TYPE_CHECKING:
    from agentrl.config.run import RunConfig

PROBE_S = 1.0
"""How long bubblewrap is waited for; what takes longer is left to the first session."""


def missing_sandbox(config: "RunConfig") -> Iterator[str]:
    """Yield why no session can be opened under `sandbox`, if so. No session is opened."""
    section = config.sandbox
    settings = SandboxSettings(
        backend=section.backend,
        allow_unisolated=section.allow_unisolated,
        image=section.image,
        packages=section.packages,
    )
    try:
        found = launcher(settings)
    except ConfigError as error:
        yield str(error)
        return
    if settings.backend == "docker":
        yield from missing_image(Image("sandbox.image", settings.image))
    elif isinstance(found, BubblewrapLauncher) and (why := _refused(found.path)):
        yield found.explain(why)


def missing_image(image: Image) -> Iterator[str]:
    """Yield why no container can be made of an image, if so."""
    try:
        with contextlib.closing(Engine()) as engine:
            engine.check_image(image)
    except (ConfigError, SandboxError) as error:
        yield str(error)


def _refused(path: str) -> str:
    """Return what bubblewrap says where this machine refuses it, or an empty string."""
    try:
        user_ids(path, PROBE_S)
    except subprocess.CalledProcessError as error:
        return error.stderr.decode(errors="replace").strip() or f"exit code {error.returncode}"
    except subprocess.TimeoutExpired:
        return ""
    except OSError as error:
        return str(error)
    return ""
