"""A look at a folder of Harbor tasks: what is in it, what it needs, what is not as it says."""

from collections.abc import Iterator
from dataclasses import dataclass

from agentrl_envs.harbor.task_config import list_unread_keys
from agentrl_envs.harbor.task_folder import HarborTask, find_tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class HarborTaskReport:
    """One task, in what a person wants to know before playing it."""

    name: str
    folder: str
    image: str
    """Name of its image, or the Dockerfile it is built of."""
    user: str
    """User of the agent; empty is the image's, as a rule root."""
    network_mode: str
    """Network of the task's wish; it is given only with `network: task`."""
    cpus: float | None
    memory_mb: int | None
    agent_timeout_s: float | None
    verifier_timeout_s: float
    verifier: str
    """`shared` or `separate`."""
    has_oracle: bool
    notes: tuple[str, ...]
    """Differences from the task's word, by default or always."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HarborReport:
    """A folder of tasks."""

    tasks: tuple[HarborTaskReport, ...]
    tools: tuple[str, ...] = ("bash", "read_file", "write_file")
    needs: tuple[str, ...] = ("a Docker engine", "the Docker SDK for Python (extra `docker`)")

    @property
    def step_s(self) -> float:
        """Smallest `rollout.step_s` that lets every verifier take its time."""
        return max(task.verifier_timeout_s for task in self.tasks)


def inspect_harbor(path: str) -> HarborReport:
    """Return a report on a folder of Harbor tasks; nothing is run.

    Raises `ConfigError` for a folder that is not whole, or asks for what is not supported.
    """
    return HarborReport(tasks=tuple(_report(task) for task in find_tasks(path)))


def _report(task: HarborTask) -> HarborTaskReport:
    section, config = task.config.environment, task.config
    return HarborTaskReport(
        name=task.name,
        folder=str(task.folder),
        image=section.docker_image or str(task.dockerfile),
        user="" if config.agent.user is None else str(config.agent.user),
        network_mode=config.agent.network_mode or section.network_mode,
        cpus=section.cpus,
        memory_mb=section.memory_mb,
        agent_timeout_s=config.agent.timeout_sec,
        verifier_timeout_s=config.verifier.timeout_sec,
        verifier="separate" if config.verifier.separate else "shared",
        has_oracle=task.has_solution,
        notes=tuple(_find_notes(task)),
    )


def _find_notes(task: HarborTask) -> Iterator[str]:
    config, section = task.config, task.config.environment
    modes = [section.network_mode, config.agent.network_mode, config.verifier.network_mode]
    if any(mode not in (None, "no-network") for mode in modes):
        yield "it asks for a network, and has none unless network: task"
    if unread := [*list_unread_keys(config)]:
        yield f"keys of task.toml that change nothing here: {', '.join(unread)}"
    if section.storage_mb is not None:
        yield f"storage_mb = {section.storage_mb} is not enforced"
    if section.skills_dir is not None:
        yield f"skills_dir = {section.skills_dir!r} is in the container, and no part of the prompt"
    if not config.verifier.separate:
        yield "processes of the agent, servers too, are ended before the verifier runs"
    if not task.has_solution:
        yield "it has no solution/solve.sh: no oracle plays it"
    if (task.folder / "trajectory.json").exists():
        yield "trajectory.json (what an agent did before) is not shown"
