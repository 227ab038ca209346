"""Environments in actors of Ray, for real: a cluster on this machine, of one node and of two."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import agentrl
from agentrl.cluster.env_pool import WorkerDied
from agentrl.cluster.env_worker import RemoteFailure
from agentrl.config.cluster import ClusterSection
from agentrl.env import Action, BaseEnv, Env, Info, Observation, Step
from agentrl.errors import ConfigError, EnvError
from agentrl.message import Message
from agentrl.metrics.writer import read_metrics
from agentrl.registry import make
from agentrl.run.train import train
from agentrl.runtime.gpu_placement import VARIABLE
from agentrl.task import Split, Task
from tests.support.tiny_run import config_file

pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(600),
    # Ray's own: what it starts is ended by it, not by us.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning"),
    pytest.mark.filterwarnings(
        "ignore::FutureWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
    ),
]
SOON_S = 240.0
MAKE = partial(make, "code/ChainSum-v0")


def section(**keys: Any) -> ClusterSection:
    return ClusterSection.model_validate(
        {"kind": "ray", "workers": 3, "worker_cpus": 0.25, "start_s": SOON_S, **keys}
    )


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let actors find what tests find, and this module by its name."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    yield
    import ray

    ray.shutdown()


class Where(BaseEnv):
    """Tells the node it is on."""

    def tasks(self, split: Split, *, seed: int = 0) -> Iterable[Task]:
        return [Task(prompt="where?", split=split)]

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        import ray

        node = ray.get_runtime_context().get_node_id()
        return Observation((Message("user", node),), ()), {}

    async def step(self, action: Action) -> Step:
        return Observation(()), 0.0, True, False, {}


class Raising:
    """An actor, each of whose calls ends with an error of Ray's."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Any:
        return self

    async def remote(self, *arguments: Any) -> Any:
        raise self._error


async def begun(world: Callable[[], Env]) -> Env:
    env = world()
    await env.reset(seed=0)
    return env


async def python(env: Env, code: str) -> str:
    observation, *_ = await env.step(agentrl.call("python", code=code))
    return observation.messages[0].text


def process_of(actor: Any) -> int:
    return os.getpid()


def devices_of(actor: Any) -> str | None:
    return os.environ.get(VARIABLE)


@pytest.mark.namespaces
async def test_worlds_are_in_actors_fork_there_and_survive_none() -> None:
    import ray

    from agentrl.cluster.ray_env_workers import ray_envs

    async with asyncio.timeout(SOON_S), ray_envs(section(), MAKE) as world:
        first, second, third = [await begun(world) for _ in range(3)]
        await python(first, "x = 41")
        copy = await first.fork()
        assert await python(copy, "x += 1; print(x)") == "42"
        assert await python(first, "print(x)") == "41"
        await third.close()
        # Not by Ray, after whose call the actor may still answer another.
        actor: Any = first._worker.actor  # pyright: ignore
        assert await actor.__ray_call__.remote(devices_of) == "", "a worker sees no GPU"
        os.kill(await actor.__ray_call__.remote(process_of), signal.SIGKILL)
        with pytest.raises(EnvError, match="the worker died"):
            await python(first, "1")
        await first.reset(seed=0)
        assert await python(first, "print(7)") == "7"
        assert await python(second, "print(8)") == "8"
        for env in (first, second, copy):
            await env.close()
    assert not ray.is_initialized()


async def test_what_cannot_be_sent_is_the_environments_fault_and_the_death_of_no_worker() -> None:
    """Kills: its worker was ended with all other environments, and the next one after it."""
    from ray.exceptions import ActorDiedError, RayTaskError

    from agentrl.cluster.ray_env_workers import RayEnvWorker

    fault = TypeError("cannot pickle '_thread.lock' object")
    raised: Any = RayTaskError("EnvWorkerHost.call()", "Traceback", fault).as_instanceof_cause()
    answer = await RayEnvWorker(Raising(raised)).call(1, "step", "x")
    assert isinstance(answer, RemoteFailure)
    with pytest.raises(EnvError, match=r"what step .* \(Ray: TypeError: cannot pickle '_thread"):
        raise answer.error()
    with pytest.raises(WorkerDied):
        await RayEnvWorker(Raising(ActorDiedError())).call(1, "step", "x")


@pytest.mark.nightly
def test_a_run_with_its_worlds_in_actors_is_the_run_without(tmp_path: Path) -> None:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    here = train(config_file(tmp_path / "here"), {"run.steps": 2})
    ray_keys = {f"cluster.{k}": v for k, v in section().model_dump(exclude_unset=True).items()}
    there = train(config_file(tmp_path / "there"), {"run.steps": 2, **ray_keys})
    one, other = (read_metrics(result.folder) for result in (here, there))
    assert [line["reward/mean"] for line in one] == [line["reward/mean"] for line in other]
    assert [line["grad/norm"] for line in one] == [line["grad/norm"] for line in other]
    assert here.after["pass@1"] == there.after["pass@1"]


@pytest.mark.nightly
async def test_workers_are_spread_over_nodes() -> None:
    import ray
    from ray.cluster_utils import Cluster

    from agentrl.cluster.ray_env_workers import ray_envs

    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    try:
        cluster.add_node(num_cpus=1)
        ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
        async with asyncio.timeout(SOON_S), ray_envs(section(workers=4), Where) as world:
            envs = [world() for _ in range(4)]
            shown = [(await env.reset())[0].messages[0].text for env in envs]
            assert len({*shown}) == 2
            for env in envs:
                await env.close()
        assert ray.is_initialized(), "what was there before is left as it was"
    finally:
        ray.shutdown()
        cluster.shutdown()


async def test_a_cluster_that_is_too_small_or_not_there_is_told_of() -> None:
    from agentrl.cluster.ray_env_workers import ray_envs

    with pytest.raises(ConfigError, match=r"lower cluster\.workers"):
        async with ray_envs(section(worker_cpus=4096, start_s=3), MAKE):
            pass
    with pytest.raises(ConfigError, match="no Ray cluster answers at"):
        async with ray_envs(section(address="127.0.0.1:1"), MAKE):
            pass


def test_a_job_joins_its_cluster_and_a_run_of_its_own_joins_no_strangers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`ray job submit` names the cluster to its job; without that Ray itself would join any."""
    import ray
    from ray.cluster_utils import Cluster

    from agentrl.cluster.connection import connect_ray

    head = {"num_cpus": 1, "resources": {"door": 1}, "include_dashboard": False}
    cluster: Any = Cluster(initialize_head=True, head_node_args=head)
    try:
        with connect_ray(section()):
            assert "door" not in ray.cluster_resources()
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        with connect_ray(section()):
            assert "door" in ray.cluster_resources()
            with connect_ray(section()):
                pass
            assert ray.is_initialized(), "what was there before is left as it was"
        assert not ray.is_initialized()
    finally:
        cluster.shutdown()
