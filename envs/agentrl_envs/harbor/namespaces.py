"""Tasks that need no Docker engine: which of them containers of namespaces cannot play, and why."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError
from agentrl_envs.harbor.settings import Network, decide_networks
from agentrl_envs.harbor.task_folder import HarborTask
from agentrl_sandbox.provider.namespaces import BUILD_NETWORKS, NamespaceProvider


def open_namespaces(
    tasks: Sequence[HarborTask],
    settings: Mapping[str, Any],
    *,
    network: Network,
    build_network: str,
) -> NamespaceProvider:
    """Return a provider that plays the tasks; it blocks.

    Raises `ConfigError` for a machine, a setting or a task that it cannot be had for.
    """
    if build_network not in BUILD_NETWORKS:
        raise ConfigError(
            f"build_network must be one of {', '.join(BUILD_NETWORKS)} with provider: namespaces, "
            f"got {build_network!r}"
        )
    try:
        provider = NamespaceProvider(**settings)
    except TypeError as error:
        raise ConfigError(f"provider_kwargs of provider: namespaces: {error}") from error
    if why := provider.explain_missing():
        raise ConfigError(
            f"provider: namespaces makes no container here: {why}; or use provider: docker"
        )
    if refusals := list(find_refusals(tasks, provider, network=network)):
        raise ConfigError("\n".join(refusals))
    return provider


def find_refusals(
    tasks: Sequence[HarborTask], provider: NamespaceProvider, *, network: Network
) -> Iterator[str]:
    """Yield what of the tasks needs an engine, by file and line or key; it blocks."""
    for task in tasks:
        if networks := sorted({*decide_networks(task, network)} - {"none"}):
            yield (
                f"{task.file}: its network is {networks[0]!r}, which there is not without an "
                "engine; use network: none, or provider: docker"
            )
        image, folder = task.verifier_image
        own_image = task.config.environment.docker_image or ""
        yield from _find_refusals(task, provider, own_image, "environment", task.environment)
        if task.config.verifier.separate:
            yield from _find_refusals(task, provider, image, "verifier.environment", folder)


def _find_refusals(
    task: HarborTask, provider: NamespaceProvider, image: str, section: str, folder: Path | None
) -> Iterator[str]:
    if image and not provider.has_base(image):
        yield (
            f"{task.file}: {section}.docker_image is {image!r}, which is none of the base images "
            "of rootfs; add it there (docs/harbor.md), or use provider: docker"
        )
    if image or folder is None:
        return
    try:
        provider.plan_build(str(folder))
    except ConfigError as error:
        yield str(error)
