"""`SandboxProvider` without an engine: namespaces of the kernel over layers of files in a cache."""

import asyncio
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from agentrl.errors import ConfigError, SandboxError
from agentrl.runtime.memory_limit import total_bytes
from agentrl.runtime.threads import make_in_thread, run_in_stoppable_thread, run_in_thread
from agentrl.sandbox_provider import ContainerLimits, ContainerSpec
from agentrl_sandbox.launch.users import gives_ids
from agentrl_sandbox.provider.content import compute_digest
from agentrl_sandbox.provider.namespaces.container import NamespaceContainer
from agentrl_sandbox.provider.namespaces.image_build import play_steps, put_names, remove_names
from agentrl_sandbox.provider.namespaces.image_plan import ImagePlan, plan_image
from agentrl_sandbox.provider.namespaces.layer_cache import (
    BUILT,
    HeldImage,
    LayerCache,
    LayeredImage,
)
from agentrl_sandbox.provider.namespaces.machine import explain_no_containers

BUILD_NETWORKS = ("none", "host")


class NamespaceProvider:
    """Containers in namespaces: root inside is nobody here, and no engine is needed.

    Args:
        rootfs: A tar archive or a folder of a root file system, by the name of a base image.
        cache: Folder of images and containers, which is root's alone.
        images: Number of images that are kept; those used longest ago go first.
        output_bytes: Length of stdout and of stderr of a command that is kept.

    Raises:
        ConfigError: The user is not root, `images` is below 1, or `rootfs` names what is missing.
    """

    def __init__(
        self,
        *,
        rootfs: Mapping[str, str] | None = None,
        cache: str = "/var/cache/agentrl",
        images: int = 64,
        output_bytes: int = 2**20,
    ) -> None:
        if not gives_ids(Path("/proc/self/uid_map").read_text(), os.geteuid()):
            raise ConfigError(
                "containers without an engine need root, who maps their users; run as root, or use "
                "provider: docker"
            )
        if images < 1:
            raise ConfigError(f"images must be at least 1, got {images}; 64 is the default")
        self._rootfs, self._output_bytes = _read_rootfs(rootfs), output_bytes
        self._cache = LayerCache(Path(cache).absolute(), rootfs=self._rootfs, images=images)
        self._builds = asyncio.Lock()
        self._containers: set[NamespaceContainer] = set()

    def explain_missing(self) -> str:
        """Return why no container can be started here, or an empty string; it blocks."""
        return explain_no_containers(self._cache)

    def has_base(self, image: str) -> bool:
        """Return whether a base image has a root file system."""
        return image in self._rootfs

    def plan_build(self, directory: str) -> ImagePlan:
        """Return the plan by which the image of a folder is built; it blocks.

        Raises `ConfigError` with file and line for what needs an engine.
        """
        return plan_image(Path(directory), self._rootfs)

    async def build(self, directory: str, *, timeout_s: float, network: str = "none") -> str:
        """Return the name of an image made of a folder; see `SandboxProvider`."""
        if network not in BUILD_NETWORKS:
            raise ConfigError(f"build network must be none or host, got {network!r}")
        plan = await run_in_thread(self.plan_build, directory)
        async with self._builds:
            try:
                async with asyncio.timeout(timeout_s):
                    return await self._build(directory, plan, shares_network=network == "host")
            except TimeoutError as error:
                raise SandboxError(
                    f"the image of {directory} does not build: it took longer than {timeout_s:g} s"
                ) from error
            except OSError as error:
                raise SandboxError(f"the image of {directory} does not build: {error}") from error

    async def _build(self, directory: str, plan: ImagePlan, *, shares_network: bool) -> str:
        content = await run_in_thread(compute_digest, directory)
        base = await self._hold(plan.base)
        digest = hashlib.sha256(f"{content}\0{base.name}".encode()).hexdigest()
        name = f"{BUILT}:{digest[:32]}"
        try:
            is_built = await run_in_thread(self._cache.find, name)
        except BaseException:
            base.release()
            raise
        if is_built:
            base.release()
            return name
        spec = ContainerSpec(image=plan.base, limits=_get_build_limits())
        container = await self._start(base, spec, shares_network=shares_network)
        try:
            if shares_network:
                await put_names(container)
            await play_steps(container, plan.steps)
            await container.halt()
            if shares_network:
                await run_in_thread(remove_names, container.upper)
            image = LayeredImage(
                layers=base.image.layers, env=plan.env, workdir=plan.workdir, user=plan.user
            )
            await run_in_thread(self._cache.add, name, image, container.upper)
        finally:
            await container.stop()
        return name

    async def find_image(self, image: str) -> bool:
        """Return whether an image is there."""
        return image in self._rootfs or await run_in_thread(self._cache.find, image)

    async def start(self, spec: ContainerSpec) -> NamespaceContainer:
        """Start a container; see `SandboxProvider`."""
        if spec.network != "none":
            raise ConfigError(
                f"network {spec.network!r} cannot be had without an engine; use none, or provider: "
                "docker"
            )
        _check_limits(spec.limits)
        container = await self._start(await self._hold(spec.image), spec)
        self._containers = {one for one in self._containers if not one.is_stopped}
        self._containers.add(container)
        return container

    async def _hold(self, name: str) -> HeldImage:
        try:
            hold = await run_in_stoppable_thread(
                lambda stop: self._cache.hold(name, stop), _release_image
            )
        except OSError as error:
            raise SandboxError(f"cache: the image {name} cannot be read: {error}") from error
        if hold is None:
            raise SandboxError(f"No such image: {name}")
        return hold

    async def _start(
        self, image: HeldImage, spec: ContainerSpec, *, shares_network: bool = False
    ) -> NamespaceContainer:
        """Start a container, which lets go of the image at its end."""

        def make() -> NamespaceContainer:
            try:
                first_id = self._cache.open()
                self._cache.check_room()
                container = NamespaceContainer(
                    image,
                    spec,
                    place=self._cache.new_place(),
                    first_id=first_id,
                    max_bytes=self._output_bytes,
                    shares_network=shares_network,
                )
            except BaseException:
                image.release()
                raise
            try:
                container.make()
            except BaseException:
                container.discard()
                raise
            return container

        return await make_in_thread(make, NamespaceContainer.discard)

    async def close(self) -> None:
        """Remove the containers that nobody stopped; see `SandboxProvider`.

        One that cannot be removed is told when all of them were tried, and left to the reaper.
        """
        containers, self._containers = self._containers, set()
        stops = (container.stop() for container in containers)
        ends = await asyncio.gather(*stops, return_exceptions=True)
        for error in filter(None, ends):
            raise error


def _read_rootfs(rootfs: object) -> dict[str, str]:
    """Return the paths of root file systems, by base image."""
    if rootfs is not None and not isinstance(rootfs, Mapping):
        raise ConfigError(f"rootfs must be paths by the names of base images, got {rootfs!r}")
    paths: dict[str, str] = {}
    for name, path in cast("Mapping[object, object]", rootfs or {}).items():
        if not isinstance(path, str | os.PathLike) or not os.path.exists(path):
            raise ConfigError(
                f"rootfs: {name} is {path!r}, which is not there; give a tar archive or a folder "
                "of a root file system"
            )
        paths[str(name)] = os.fspath(cast("str", path))
    return paths


def _release_image(image: HeldImage | None) -> None:
    if image is not None:
        image.release()


def _get_build_limits() -> ContainerLimits:
    """Return the limits of a build: the defaults, as far as this machine has them."""
    limits, cores = ContainerLimits(), os.cpu_count() or 1
    return ContainerLimits(
        cpus=min(limits.cpus, cores),
        memory_bytes=min(limits.memory_bytes, total_bytes()),
        processes=limits.processes,
    )


def _check_limits(limits: ContainerLimits) -> None:
    for key, limit, room in (
        ("cpus", limits.cpus, os.cpu_count() or 1),
        ("memory_bytes", limits.memory_bytes, total_bytes()),
    ):
        if not 0 < limit <= room:
            raise ConfigError(
                f"a container of the limit {key}={limit:g} does not fit: the machine has "
                f"{room:g}; ask for less"
            )
