"""A container per session, as many frameworks do it, and our own pool of containers beside it."""

import asyncio
import subprocess
from collections.abc import Sequence

from agentrl.errors import AgentrlError
from agentrl.sandbox import SandboxSettings
from agentrl_sandbox.launch.engine import DockerEngine
from agentrl_sandbox.recipe import RECIPES
from benchmarks.harness import Benchmark, Contender
from benchmarks.sessions import latency
from benchmarks.sessions.rates import Cpu, Sessions, tidy
from benchmarks.sessions.stage import CELL, Latencies

IMAGE = SandboxSettings().image
_TIMEOUT_S = 120


def why_not() -> str:
    """Return why no container can be started, or an empty string."""
    try:
        engine = DockerEngine()
        try:
            engine.check_image(RECIPES["sandbox"].image(IMAGE))
        finally:
            engine.close()
        docker(["version"])
    except (AgentrlError, OSError, subprocess.SubprocessError) as error:
        return str(error)
    return ""


def docker(arguments: Sequence[str]) -> str:
    """Run the engine's command and return what it says."""
    done = subprocess.run(
        ["docker", *arguments], capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
    )
    return done.stdout.strip()


def measure(bench: Benchmark) -> None:
    """Add the rows of containers, or say why there are none."""
    if why := why_not():
        bench.notes.append(f"no containers were measured: {why}")
        return
    seen = asyncio.run(_per_session(2 if bench.quick else 10))
    for what in ("open", "call", "close"):
        seen.state(bench, what, title=f"a container per session: {what}")
    latency.measure(bench, "docker")
    for count in (1, 32):
        sessions = Sessions(count, 1_000 if bench.quick else 10_000, Cpu(), "docker")
        runs = bench.compare({f"docker: cells {count}": Contender(set_up=sessions.set_up)})
        tidy()
        (own,) = runs.values()
        where = f"{count} session{'s' * (count > 1)}"
        bench.rate(f"docker: cells, {where}", own, unit="cells", by="wall")


async def _per_session(times: int) -> Latencies:
    """Start a container for each session, a process in it for each call, and remove it."""
    seen = Latencies()
    start = ["run", "--detach", "--network=none", IMAGE, "sleep", "3600"]
    for _ in range(times):
        container = await seen.timed("open", asyncio.to_thread(docker, start))
        try:
            call = ["exec", container, "python3", "-c", f"print({CELL})"]
            for _ in range(3):
                assert await seen.timed("call", asyncio.to_thread(docker, call)) == "2"
        finally:
            remove = asyncio.to_thread(docker, ["rm", "--force", container])
            await seen.timed("close", remove)
    return seen
