"""The Docker engine that tasks are played on: there, or refused in words of the tasks."""

import contextlib
from collections.abc import Generator, Sequence

from agentrl.errors import ConfigError, SandboxError
from agentrl_envs.harbor.task_folder import HarborTask
from agentrl_sandbox.launch.engine import DockerEngine


def check_engine(tasks: Sequence[HarborTask]) -> None:
    """Raise `ConfigError` where no engine answers, with a task that needs it and the ways out."""
    with _open_engine(tasks):
        pass


def find_missing_images(tasks: Sequence[HarborTask]) -> list[str]:
    """Return the images that tasks name and the engine does not have, sorted."""
    names = {task.config.environment.docker_image for task in tasks}
    names |= {task.verifier_image[0] for task in tasks if task.config.verifier.separate}
    with _open_engine(tasks) as engine:
        return [image for image in sorted(filter(None, names)) if not engine.find_image(image)]


@contextlib.contextmanager
def _open_engine(tasks: Sequence[HarborTask]) -> Generator[DockerEngine]:
    try:
        engine = DockerEngine()
    except ConfigError as error:
        raise ConfigError(explain_missing_engine(tasks, str(error))) from error
    with contextlib.closing(engine):
        try:
            yield engine
        except SandboxError as error:
            raise ConfigError(explain_missing_engine(tasks, str(error))) from error


def explain_missing_engine(tasks: Sequence[HarborTask], why: str) -> str:
    """Return a refusal: the field that needs an engine, why there is none, and the ways out."""
    task = tasks[0]
    image = task.config.environment.docker_image
    field = f"environment.docker_image = {image!r}" if image else str(task.dockerfile)
    others = {1: "", 2: ", as 1 other task does"}.get(
        len(tasks), f", as {len(tasks) - 1} other tasks do"
    )
    return (
        f"{task.file} needs a container ({field}){others}: {why}; or let DOCKER_HOST name the "
        "engine of another machine (ssh://user@machine), or use provider: namespaces, which needs "
        "no engine, or one of your own (docs/harbor.md)"
    )
