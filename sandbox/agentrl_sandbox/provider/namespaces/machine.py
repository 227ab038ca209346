"""Machines that make containers without an engine, and why others do not."""

from agentrl.errors import AgentrlError
from agentrl.sandbox_provider import ContainerSpec
from agentrl_sandbox.cgroup import explain_no_cgroups
from agentrl_sandbox.provider.namespaces.container import NamespaceContainer
from agentrl_sandbox.provider.namespaces.layer_cache import (
    HeldImage,
    LayerCache,
    LayeredImage,
    make_folder,
)


def explain_no_containers(cache: LayerCache) -> str:
    """Return why no container can be started here, or an empty string; one is tried."""
    if why := explain_no_cgroups():
        return f"their limits cannot be kept: {why}"
    try:
        first_id = cache.open()
        with cache.new_folder() as folder:
            make_folder(folder / "root", first_id)
            image = HeldImage("probe", LayeredImage(layers=()), (folder / "root",), -1)
            container = NamespaceContainer(
                image,
                ContainerSpec(image="probe"),
                place=cache.new_place(),
                first_id=first_id,
                max_bytes=0,
            )
            try:
                container.make()
            finally:
                container.discard()
    except (AgentrlError, OSError) as error:
        return str(error)
    return ""
