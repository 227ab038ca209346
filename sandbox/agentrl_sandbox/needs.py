"""Needs of a config's sandbox, checked before a run begins."""

import contextlib
import subprocess
from collections.abc import Iterator
from typing import TYPE_CHECKING

from agentrl.errors import ConfigError, SandboxError
from agentrl.sandbox import SandboxSettings
from agentrl_sandbox.launch import BubblewrapLauncher, NamespaceLauncher, launcher
from agentrl_sandbox.launch.engine import ContainerImage, DockerEngine
from agentrl_sandbox.reaping import record

if TYPE_CHECKING:
    from agentrl.config.run import RunConfig

PROBE_S = 1.0
"""Deadline of a trial; what takes longer is left to the first session."""


def find_missing_sandbox(config: "RunConfig") -> Iterator[str]:
    """Yield why no session can be opened under `sandbox`, if so. No session is opened."""
    section = config.sandbox
    settings = SandboxSettings(
        backend=section.backend,
        allow_unisolated=section.allow_unisolated,
        image=section.image,
        packages=section.packages,
    )
    try:
        record.check_directory(record.state_directory(), make=False)
        sandbox_launcher = launcher(settings)
    except (record.StateError, ConfigError) as error:
        yield str(error)
        return
    if settings.backend == "docker":
        yield from find_missing_image(ContainerImage("sandbox.image", settings.image))
    elif isinstance(sandbox_launcher, NamespaceLauncher | BubblewrapLauncher):
        try:
            sandbox_launcher.user_ids(PROBE_S)
        except ConfigError as error:
            yield str(error)
        except subprocess.TimeoutExpired:
            return
        except (OSError, subprocess.SubprocessError) as error:
            yield sandbox_launcher.explain(explain_trial_error(error))


def find_missing_image(image: ContainerImage) -> Iterator[str]:
    """Yield why no container can be made of an image, if so."""
    try:
        with contextlib.closing(DockerEngine()) as engine:
            engine.check_image(image)
    except (ConfigError, SandboxError) as error:
        yield str(error)


def explain_trial_error(error: OSError | subprocess.SubprocessError) -> str:
    """Return why nothing can be isolated, of the error of a trial."""
    if isinstance(error, subprocess.CalledProcessError):
        stderr = error.stderr.decode(errors="replace").strip()
        return stderr or f"the trial ended with exit code {error.returncode}"
    if isinstance(error, subprocess.TimeoutExpired):
        return (
            f"the trial took more than {error.timeout:g} s, so the machine is busy; try again when "
            "it is not"
        )
    return str(error)
