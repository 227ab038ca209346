"""Workers as actors of Ray, which starts them on the machines it has."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from agentrl.cluster.connection import connect_ray, first_line
from agentrl.cluster.env_pool import EnvWorkerPool, WorkerDied
from agentrl.cluster.env_worker import EnvRunContext, EnvWorkerHost, Method, RemoteFailure
from agentrl.cluster.remote_env import RemoteEnv
from agentrl.env import Env
from agentrl.errors import ConfigError
from agentrl.runtime.gpu_placement import VARIABLE
from agentrl.runtime.run_id import run_id
from agentrl.sandbox import sandbox_settings

if TYPE_CHECKING:
    from agentrl.config.cluster import ClusterSection

CALLS_AT_ONCE = 10_000
"""Calls of one actor at once; `rollout.concurrency` is the limit on trajectories."""
END_S = 60.0


@dataclass(frozen=True, slots=True)
class RayEnvWorker:
    """One actor."""

    actor: Any

    @classmethod
    async def start(
        cls, make_env: Callable[[], Env], belongings: EnvRunContext, *, cpus: float
    ) -> "RayEnvWorker":
        """Start an actor wherever Ray has room; `WorkerDied` when it cannot be."""
        import ray

        actor_class: Any = ray.remote(EnvWorkerHost)
        worker = cls(
            actor_class.options(
                num_cpus=cpus,
                max_concurrency=CALLS_AT_ONCE,
                max_restarts=0,  # what a worker held is gone with it: the fleet decides
                scheduling_strategy="SPREAD",
                # Environments need no GPU, and what they import must not take memory of one.
                runtime_env={"env_vars": {VARIABLE: ""}},
            ).remote(make_env, belongings)
        )
        try:
            await worker._answer(worker.actor.open.remote())
        except BaseException:
            ray.kill(worker.actor, no_restart=True)
            raise
        return worker

    async def call(self, number: int, method: Method, *arguments: Any) -> Any:
        from ray.exceptions import RayTaskError

        try:
            return await self._answer(self.actor.call.remote(number, method, *arguments))
        except WorkerDied as error:
            if not isinstance(error.__cause__, RayTaskError):
                raise
            # The host answers with the errors of environments, so that this is one of Ray's there.
            return RemoteFailure(
                "env",
                f"what {method} takes or returns cannot be sent between an environment and its "
                f"worker ({error}); use values that can be pickled, in info too",
            )

    async def cancel(self, number: int) -> None:
        await self._answer(self.actor.cancel.remote(number))

    async def close(self) -> None:
        import ray

        try:
            async with asyncio.timeout(END_S):
                await self._answer(self.actor.close.remote())
        except (TimeoutError, WorkerDied):
            pass
        finally:
            ray.kill(self.actor, no_restart=True)

    async def _answer(self, reference: Any) -> Any:
        from ray.exceptions import RayActorError, RayError

        try:
            return await reference
        except RayActorError as error:
            raise WorkerDied(first_line(error)) from error
        except RayError as error:
            raise WorkerDied(f"Ray: {first_line(error)}") from error


@asynccontextmanager
async def ray_envs(
    section: "ClusterSection", make_env: Callable[[], Env]
) -> AsyncGenerator[Callable[[], Env]]:
    """Make environments whose worlds are in actors of Ray, which end with the block.

    See `connect_ray` for how Ray is reached, and what it raises.
    """
    with connect_ray(section):
        async with _open_fleet(section, make_env) as fleet:
            yield lambda: RemoteEnv(make_env(), fleet)


@asynccontextmanager
async def _open_fleet(
    section: "ClusterSection", make_env: Callable[[], Env]
) -> AsyncGenerator[EnvWorkerPool]:
    belongings = EnvRunContext(sandbox=sandbox_settings(), run_id=run_id())
    fleet = EnvWorkerPool(
        partial(RayEnvWorker.start, make_env, belongings, cpus=section.worker_cpus),
        workers=section.workers,
        max_restarts=section.max_restarts,
        start_s=section.start_s,
    )
    try:
        await _start_fleet(fleet, section)
        yield fleet
    finally:
        await fleet.close()


async def _start_fleet(fleet: EnvWorkerPool, section: "ClusterSection") -> None:
    import ray

    try:
        await fleet.open()
    except TimeoutError as error:
        there = ray.cluster_resources().get("CPU", 0)
        raise ConfigError(
            f"Ray did not start {section.workers} environment workers with {section.worker_cpus:g} "
            f"CPUs each within cluster.start_s = {section.start_s:g} s; the cluster has {there:g} "
            "CPUs: lower cluster.workers or cluster.worker_cpus"
        ) from error
    except WorkerDied as error:
        raise ConfigError(
            f"an environment worker could not be started: {error}; install the same packages on "
            "every machine of the cluster"
        ) from error
