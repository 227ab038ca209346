"""What a controller pays per turn as worlds become many, and what weights cost on their way.

    python benchmarks/scale.py [--worlds 10 100 1000] [--actors 2] [--megabytes 64] [--json FILE]

Worlds and policy are scripts that cost nothing, so what is left is ours and Ray's. Times are CPU
times of this process, the controller, which a busy machine disturbs least; the actors' are not in
them.
"""

import argparse
import asyncio
import json
import os
import pickle
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agentrl.cluster.engines.host import EngineHost
from agentrl.cluster.env_pool import EnvWorkerPool
from agentrl.cluster.env_worker import EnvRunContext, EnvWorkerHost
from agentrl.cluster.ray_env_workers import ray_envs
from agentrl.cluster.remote_env import RemoteEnv
from agentrl.config.cluster import ClusterSection
from agentrl.engine.remote import EngineServer, connect
from agentrl.engine.remote.client import to_safetensors
from agentrl.engine.remote.frames import EngineFrame, read_frame, write_frame
from agentrl.engine.remote.shared_weights import SharedWeights
from agentrl.engine.remote.weight_broadcast import WeightBroadcaster
from agentrl.engine.remote.wire import completion_frame, request_frame
from agentrl.engine.scripted import ScriptedEngine
from agentrl.engine.spec import EngineSpec
from agentrl.engine.weights import read_weights
from agentrl.env import Env, say
from agentrl.policy import Completion, GenerateRequest, Sampling
from agentrl.rollout.episode import EpisodeLimits
from agentrl.rollout.runner import RolloutRunner
from agentrl.sandbox import sandbox_settings
from agentrl.task import Task
from benchmarks.chaos_world import Corridor
from benchmarks.letters import END, LetterChat, ids

TURNS = 6
ROUNDS = 5
CALLS = 300
Row = tuple[str, float, str]
World = partial(Corridor, turns=TURNS, step_s=0.0)


class HostWorker:
    """A worker in this process: all of a cluster but Ray."""

    def __init__(self, host: EnvWorkerHost) -> None:
        self._host = host

    async def call(self, number: int, method: Any, *arguments: Any) -> Any:
        """Call an environment."""
        return await self._host.call(number, method, *arguments)

    async def cancel(self, number: int) -> None:
        """Stop what an environment is doing."""
        await self._host.cancel(number)

    async def close(self) -> None:
        """Close the environments."""
        await self._host.close()


@asynccontextmanager
async def hosted(actors: int) -> AsyncGenerator[Callable[[], Env]]:
    """Make worlds that are behind a fleet, in this process."""

    async def start() -> HostWorker:
        host = EnvWorkerHost(World, EnvRunContext(sandbox_settings(), "scale"))
        await host.open()
        return HostWorker(host)

    fleet = await EnvWorkerPool(start, workers=actors, max_restarts=0, start_s=60).open()
    try:
        yield lambda: RemoteEnv(World(), fleet)
    finally:
        await fleet.close()


async def turns(make_env: Callable[[], Env], worlds: int) -> float:
    """Return microseconds of CPU per turn, with so many worlds at once."""
    rollouts = RolloutRunner(
        make_env=make_env,
        engine=ScriptedEngine(lambda request: (*ids("go"), END)),
        chat=LetterChat(),
        limits=EpisodeLimits(max_turns=TURNS + 1, reset_s=600, step_s=600),
        concurrency=worlds,
        retries=2,
        rebuilds=2,
    )
    tasks = [Task(prompt=f"door {number}", split="train") for number in range(worlds)]
    began = time.process_time()
    trees = await rollouts.collect(tasks, group_size=1, seed=1, sampling=Sampling())
    played = sum(len(leaf.turn_rewards) for tree in trees for leaf in tree.leaves)
    assert played == worlds * TURNS, [leaf.outcome for tree in trees for leaf in tree.leaves][:3]
    return (time.process_time() - began) * 1e6 / played


async def controller(worlds: list[int], actors: int) -> list[Row]:
    """Measure turns with worlds here, behind a fleet, and in actors of Ray."""
    rows: list[Row] = []

    async def measure(name: str, make_env: Callable[[], Env]) -> None:
        await turns(make_env, 5)
        for count in worlds:
            spent_us = await turns(make_env, count)
            rows.append((f"a turn, {name}, {count:,} worlds", spent_us, "us"))

    await measure("here", World)
    async with hosted(actors) as make_env:
        await measure("behind a fleet here", make_env)
    section = ClusterSection(kind="ray", workers=actors, worker_cpus=0.25, start_s=600)
    async with ray_envs(section, World) as make_env:
        await measure(f"in {actors} actors", make_env)
        rows.extend(await calls())
    return rows


async def calls() -> list[Row]:
    """Measure one call that answers at once: of an actor, and over an engine's socket."""
    import ray

    actor_class: Any = ray.remote(EngineHost)
    recipe = EngineSpec(kind="local", folder="/none")
    actor = actor_class.options(num_cpus=0).remote(recipe, _nowhere, python=None, start_s=60)
    prompt = tuple(range(1000))
    engine = ScriptedEngine(lambda request: (END,))
    async with EngineServer(engine, key=b"key") as server:
        port = await server.listen("127.0.0.1", 0)
        async with await connect(f"127.0.0.1:{port}", key=b"key") as remote:
            numbers = iter(range(10**9))

            async def over_socket() -> object:
                request = GenerateRequest(
                    id=f"a/{next(numbers)}/0/0", prompt=prompt, max_new_tokens=1
                )
                return await remote.generate(request)

            async def of_actor() -> object:
                return await actor.said.remote()

            found = {
                "call of an actor": await each_us(of_actor),
                "request of 1,000 tokens over a socket, both ends here": await each_us(over_socket),
            }
    ray.kill(actor)
    return [(name, us, "us") for name, us in found.items()]


async def each_us(call: Callable[[], Awaitable[object]]) -> float:
    """Return the CPU time of one call in this process, in microseconds."""
    began = time.process_time()
    for _ in range(CALLS):
        await call()
    return (time.process_time() - began) * 1e6 / CALLS


async def copied() -> list[Row]:
    """Count the bytes of a trajectory on its way: to its world and back, to an engine and back."""
    env, task = World(), Task(prompt="door 1", split="train")
    there = len(pickle.dumps(("reset", 1, {"task": task, "sample": 0})))
    back = len(pickle.dumps(await env.reset(seed=1, options={"task": task})))
    frames, context = 0, 1000
    for number in range(TURNS):
        action = say("x" * 400)
        there += len(pickle.dumps(("step", action)))
        back += len(pickle.dumps(await env.step(action)))
        request = GenerateRequest(
            id=f"t/1/{number}", prompt=tuple(range(context)), max_new_tokens=100
        )
        said = Completion(
            token_ids=(1,) * 100, logprobs=(-1.0,) * 100, versions=(1,) * 100, finish="stop"
        )
        for frame in (request_frame(request), completion_frame(said)):
            frames += len(frame.to_bytes()) + len(frame.body)
        context += 200
    return [
        (f"trajectory of {TURNS} turns: bytes to its world", float(there), "B"),
        (f"trajectory of {TURNS} turns: bytes from its world", float(back), "B"),
        (f"the same, prompts of 1,000 to {context - 200:,} tokens: engine", float(frames), "B"),
    ]


async def weights(megabytes: int, folder: Path) -> list[Row]:
    """Measure the ways that weights go, from a state dict to a state dict, both ends here."""
    state = {f"w{n}": torch.randn(megabytes * 2**20 // 16, dtype=torch.float32) for n in range(4)}
    size = sum(tensor.nbytes for tensor in state.values()) / 1e6

    async def by_memory() -> None:
        kept = SharedWeights(state)
        read_weights(kept.path)

    async def by_file() -> None:
        from safetensors.torch import save_file

        save_file(state, folder / "weights.safetensors")
        read_weights(folder / "weights.safetensors")

    async def by_socket() -> None:
        from safetensors.torch import load

        got: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            got.set_result(len(load((await read_frame(reader)).body)))
            writer.close()

        server = await asyncio.start_server(take, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            write_frame(writer, EngineFrame({}, to_safetensors(state)))
            await writer.drain()
            assert await got == len(state)
            writer.close()

    async def by_store() -> None:
        import ray

        reference = ray.put(np.frombuffer(to_safetensors(state), dtype=np.uint8))
        host = EngineHost(EngineSpec(kind="local", folder="/"), _nowhere, python=None, start_s=1)
        read_weights(host.keep(ray.get(reference)))
        await host.close()

    async def by_broadcast() -> None:
        copy = await spreader.spread(state, [remote])
        await spreader.load(remote, copy, 1)

    import ray

    spreader = WeightBroadcaster(backend="gloo", bucket_bytes=64 * 2**20, deadline_s=600.0)
    taking = Taking(lambda request: (END,))
    server = EngineServer(taking, key=b"key")
    remote = await connect(f"127.0.0.1:{await server.listen('127.0.0.1', 0)}", key=b"key")
    ray.init(address="local", include_dashboard=False, log_to_driver=False)
    ways = {
        "shared memory": by_memory,
        "a file": by_file,
        "a socket": by_socket,
        "Ray's object store, then shared memory": by_store,
        "broadcast to one engine, and a copy for replacements": by_broadcast,
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    try:
        for _ in range(ROUNDS):
            for name, way in ways.items():
                began, began_s = time.process_time(), time.perf_counter()
                await way()
                times[name].append((time.process_time() - began, time.perf_counter() - began_s))
    finally:
        ray.shutdown()
        for one in (remote, server, spreader):
            await one.close()
    return [
        (f"{size:.0f} MB of weights by {name}", size / statistics.median(spent), unit)
        for name, found in times.items()
        for spent, unit in zip(
            zip(*found, strict=True), ("MB per CPU second", "MB per second"), strict=True
        )
    ]


class Taking(ScriptedEngine):
    """Reads the weights that it is given."""

    async def load(self, weights: Any, version: int) -> None:
        """Read them, as the ways beside this one do."""
        read_weights(weights)
        await super().load(weights, version)


def _nowhere() -> tuple[str, str]:
    return "", ""


async def main() -> None:
    """Read the arguments, measure, and print."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--worlds", type=int, nargs="+", default=[10, 100, 1000])
    arguments.add_argument("--actors", type=int, default=2)
    arguments.add_argument("--megabytes", type=int, default=64)
    arguments.add_argument("--json", type=Path)
    given = arguments.parse_args()
    roots = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, roots))
    with tempfile.TemporaryDirectory() as folder:
        rows = await weights(given.megabytes, Path(folder))
    rows = [*await controller(given.worlds, given.actors), *await copied(), *rows]
    lines = [f"| {name} | {value:,.0f} {unit} |" for name, value, unit in rows]
    sys.stdout.write("\n".join(["| what | |", "| --- | ---: |", *lines]) + "\n")
    if given.json:
        given.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    asyncio.run(main())
