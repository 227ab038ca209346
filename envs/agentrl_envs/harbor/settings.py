"""Limits, networks and variables of a task, by its `task.toml` and the environment's keys."""

import os
from collections.abc import Sequence
from typing import Literal

from agentrl.errors import ConfigError
from agentrl.sandbox_provider import ContainerLimits, NetworkAccess
from agentrl_envs.harbor.task_config import EnvironmentSection, NetworkMode
from agentrl_envs.harbor.task_folder import HarborTask

Network = Literal["none", "task"]
MB = 2**20


def decide_limits(
    section: EnvironmentSection,
    *,
    cpus: float,
    memory_mb: int,
    max_cpus: float | None,
    max_memory_mb: int | None,
    processes: int,
) -> ContainerLimits:
    """Return the limits of a container: the task's, else ours; never above those with `max`."""
    task_cpus = section.cpus or cpus
    task_mb = section.memory_mb or memory_mb
    return ContainerLimits(
        cpus=min(task_cpus, max_cpus or task_cpus),
        memory_bytes=min(task_mb, max_memory_mb or task_mb) * MB,
        processes=processes,
    )


def decide_networks(task: HarborTask, network: Network) -> tuple[NetworkAccess, NetworkAccess]:
    """Return the networks of the agent's and of the verifier's phase.

    Without `network: task` there is none. Raises `ConfigError` for an allow-list, and for phases of
    one container that differ.
    """
    if network == "none":
        return "none", "none"
    config = task.config
    section = config.verifier.environment if config.verifier.separate else None
    modes: dict[str, NetworkMode] = {
        "agent": config.agent.network_mode or config.environment.network_mode,
        "verifier": config.verifier.network_mode or (section or config.environment).network_mode,
    }
    for phase, mode in modes.items():
        if mode == "allowlist":
            raise ConfigError(
                f"{task.file}: the {phase}'s network_mode is 'allowlist', which this provider "
                "cannot keep; use network: none, or leave this task out"
            )
    agent, verifier = _access(modes["agent"]), _access(modes["verifier"])
    if agent != verifier and not config.verifier.separate:
        raise ConfigError(
            f"{task.file}: the agent's network_mode is {modes['agent']!r} and the verifier's "
            f"{modes['verifier']!r}, but they share a container, whose network stays the same; use "
            "network: none, or leave this task out"
        )
    return agent, verifier


def _access(mode: NetworkMode) -> NetworkAccess:
    return "public" if mode == "public" else "none"


def read_passed(names: Sequence[str]) -> dict[str, str]:
    """Return the variables of this machine that tasks are given; `ConfigError` for one not set."""
    if isinstance(names, str):
        raise ConfigError(f"pass_env must be a list of names, got {names!r}")
    if missing := [name for name in names if name not in os.environ]:
        raise ConfigError(
            f"pass_env lists {missing}, but no such variable is set; set or remove it"
        )
    return {name: os.environ[name] for name in names}
