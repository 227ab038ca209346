"""Engines as actors of Ray, which finds room for them; requests go over sockets of our own."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from agentrl.cluster.connection import connect_ray, find_address, first_line
from agentrl.cluster.engines.host import EngineAddressInfo, EngineHost
from agentrl.cluster.engines.weight_cache import NodeWeightCache
from agentrl.cluster.env_worker import RemoteFailure
from agentrl.cluster.placement import PlacementRequest, describe_resources
from agentrl.engine.remote.client import RemoteEngine, connect
from agentrl.engine.remote.replicas import EngineReplica, EngineReplicas
from agentrl.engine.remote.shared_weights import SharedWeights, find_missing_base
from agentrl.engine.remote.weight_broadcast import WeightBroadcaster
from agentrl.engine.spec import EngineSpec
from agentrl.errors import ConfigError, EngineError, EngineLost

if TYPE_CHECKING:
    from agentrl.config.cluster import ClusterSection

CALLS_AT_ONCE = 100
END_S = 30.0
"""Seconds an actor has to end its engine."""
GIVE_UP_S = 5.0
"""The same of one that never came to serve; it may not even have been placed."""
SAID_S = 5.0


@dataclass(slots=True, eq=False)
class RayEngineHost:
    """One actor, and the engine in the process that it holds."""

    actor: Any
    opened: EngineAddressInfo
    engine: RemoteEngine
    freight: NodeWeightCache
    _is_lost: bool = field(default=False, init=False)

    @property
    def name(self) -> str:
        return f"actor at {self.opened.address}"

    @property
    def is_open(self) -> bool:
        return self.engine.is_open and not self._is_lost

    async def load(self, weights: Path | SharedWeights, version: int) -> None:
        """Have the engine take weights, which come to its machine once for all engines there."""
        try:
            await self._load(weights, version)
        except EngineLost:
            # An actor is gone a moment before the process that it holds.
            self._is_lost = True
            raise

    async def _load(self, weights: Path | SharedWeights, version: int) -> None:
        node, freight = self.opened.node, self.freight
        if (base := find_missing_base(weights, self.engine)) is not None:
            # Once in its life, so that each engine is sent its own, over our socket to it.
            give = self.engine.lay if node == freight.home else self.engine.send_base
            await give(base.path, base.id)
        path = await freight.path(weights, node=node, actor=self.actor)
        carrier = freight.carrier(node)
        try:
            await self.engine.load(path, version)
        except ValueError:
            if not freight.carries(weights, node):
                raise
            # They may have gone with who carried them, which may be our own actor.
            freight.forget(node, carrier)
            path = await freight.path(weights, node=node, actor=self.actor)
            await self.engine.load(path, version)

    async def read_output(self) -> str:
        """Return the end of what the engine's process has written."""
        try:
            async with asyncio.timeout(SAID_S):
                return await await_answer(self.actor.said.remote())
        except (EngineError, TimeoutError):
            return "nothing that can still be read"

    async def close(self) -> None:
        await self.engine.close()
        self.freight.forget(self.opened.node, self.actor)
        await _end_actor(self.actor, within_s=END_S)


class RayEngineReplica(EngineReplica):
    """One engine in an actor, replaced when it or its machine dies; see `EngineReplica`."""

    def __init__(
        self, recipe: EngineSpec, section: "ClusterSection", *, index: int, python: str | None,
        start_s: float, max_restarts: int,
    ) -> None:  # fmt: skip
        super().__init__(max_restarts=max_restarts)
        self._recipe = recipe
        self._section = section
        self._index = index
        self._python = python
        self._start_s = start_s
        self.room: Any = None
        """The placement group; its bundle of our index is ours."""
        self.freight: NodeWeightCache | None = None

    async def start(self) -> RayEngineHost:
        """Start an actor in our place, which Ray moves when its machine is gone."""
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        assert self.freight is not None, "RayEngineReplicas makes room first"
        actor_class: Any = ray.remote(EngineHost)
        actor = actor_class.options(
            num_cpus=self._section.engine_cpus,
            num_gpus=self._section.engine_gpus,
            max_concurrency=CALLS_AT_ONCE,
            max_restarts=0,  # who replaces it knows the weights, Ray does not
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                placement_group=self.room, placement_group_bundle_index=self._index
            ),
        ).remote(self._recipe, find_address, python=self._python, start_s=self._start_s)
        try:
            async with asyncio.timeout(self._start_s):
                await self.freight.folder_to(actor)
                opened = await await_answer(actor.open.remote())
            if isinstance(opened, RemoteFailure):
                raise opened.error()
            engine = await _connect_engine(opened, self._start_s)
        except TimeoutError as error:
            await _end_actor(actor, within_s=GIVE_UP_S)
            raise EngineError(
                "an engine was not placed in the cluster, or was not ready, within engine.start_s "
                f"= {self._start_s:g} s; {describe_resources()}; raise engine.start_s if loading "
                "its model takes longer"
            ) from error
        except BaseException:
            await _end_actor(actor, within_s=GIVE_UP_S)
            raise
        return RayEngineHost(actor, opened, engine, self.freight)


class RayEngineReplicas(EngineReplicas):
    """Engines in actors, as one. Its block has the connection to Ray and the room for them."""

    def __init__(
        self,
        recipe: EngineSpec,
        section: "ClusterSection",
        *,
        count: int,
        python: str | None,
        start_s: float,
        max_restarts: int,
        spreader: WeightBroadcaster | None = None,
    ) -> None:
        self.engines = [
            RayEngineReplica(
                recipe,
                section,
                index=index,
                python=python,
                start_s=start_s,
                max_restarts=max_restarts,
            )
            for index in range(count)
        ]
        super().__init__(self.engines, spreader)
        self._recipe = recipe
        self._section = section
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        try:
            self._stack.enter_context(connect_ray(self._section))
            room = await self._stack.enter_async_context(
                _hold_room(self._section, len(self.engines))
            )
            freight = NodeWeightCache(
                home=find_address()[1], folder=Path(self._recipe.folder), await_answer=await_answer
            )
            for engine in self.engines:
                engine.room, engine.freight = room, freight
            return await super().__aenter__()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close every engine, give the room back, and leave Ray as it was found. Idempotent."""
        try:
            await super().close()
        finally:
            await self._stack.aclose()


async def await_answer(reference: Any) -> Any:
    """Return the result of an actor's call. Raises `EngineLost` when the actor is gone."""
    from ray.exceptions import RayError

    try:
        return await reference
    except RayError as error:
        raise EngineLost(f"the engine's actor is gone: {first_line(error)}") from error


async def _connect_engine(opened: EngineAddressInfo, start_s: float) -> RemoteEngine:
    try:
        return await connect(opened.address, key=opened.key, start_s=start_s)
    except EngineError as error:
        # It listened a moment ago.
        raise EngineLost(str(error)) from error


@asynccontextmanager
async def _hold_room(section: "ClusterSection", engines: int) -> AsyncGenerator[Any]:
    from ray.exceptions import RayError
    from ray.util.placement_group import remove_placement_group

    request = PlacementRequest(
        what="engines",
        count=engines,
        cpus=section.engine_cpus,
        gpus=section.engine_gpus,
        strategy=section.engine_strategy,
        keys="engine.processes, cluster.engine_cpus or cluster.engine_gpus",
    )
    room = request.ask()
    try:
        try:
            async with asyncio.timeout(section.start_s):
                await room.ready()
        except TimeoutError as error:
            raise request.refusal(within_s=section.start_s) from error
        except RayError as error:
            raise ConfigError(f"Ray stopped while engines waited for resources: {error}") from error
        yield room
    finally:
        remove_placement_group(room)


async def _end_actor(actor: Any, *, within_s: float) -> None:
    import ray

    try:
        async with asyncio.timeout(within_s):
            await await_answer(actor.close.remote())
    except (EngineError, TimeoutError):
        pass
    finally:
        ray.kill(actor, no_restart=True)
