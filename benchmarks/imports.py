"""What does a step cost that is imported from elsewhere, beside the package's own loop?

| group | ours | theirs |
| --- | --- | --- |
| `gymnasium` | FrozenLake, told in words, 8 at once | `AsyncVectorEnv` of the same 8 |
| `gem` | a game of GEM, by its host, 8 at once | GEM's `AsyncVectorEnv` of the same 8 |
| `openenv` | a real server, by its host | the client of release 0.10, at the same server |
| `trl` | a counter's method as a tool | a bare call of the method |
| `dataset` | a file read, one turn scored per row | `datasets` and the same function |
| `verifiers` | a question, asked through the gateway | the package's rollout of the task |
| `inspect` | a question, asked through the gateway | the package's `eval` of the sample |
| `harbor` | a container started, one command, removed | the same by the `docker` command |

`--only GROUP ...` chooses. A step is the work, or an episode where a package asks a model by itself
(theirs asks an endpoint in its own process, which answers at once); a ratio is our rate in theirs,
and the goal of 0.67 is 1.5 times their time. The measure is CPU time of the process tree, the hosts
and the server among it; for `harbor` it is time by the clock, since Docker's engine is no child of
ours. A package's own loop is the one that plays several episodes side by side, as a rollout does:
one bare call after another is given below it, without a goal, and so is TRL's method, whose loop is
its trainer (`benchmarks.vs_trl`). Theirs is spared what an environment of ours has beyond it:
messages, parsed answers, a deadline. What needs a package that is not there is said below the
table.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Self
from unittest import mock

import gymnasium
import numpy

import agentrl
from agentrl.env import Action, Env
from agentrl.runtime.reachability import unreachable
from agentrl.runtime.scope import run_scope
from agentrl.sandbox import SandboxSettings
from agentrl.sandbox_provider import ContainerSpec
from agentrl.task import SPLITS
from agentrl_sandbox.provider import DockerProvider
from benchmarks.harness import Benchmark, Contender, Run, parser
from benchmarks.sessions.containers import docker, why_not
from tests.support.counter_factory import IncrementEnv
from tests.support.foreign_packages import BENCH, python_of, write_uv_index
from tests.support.ports import free_port

ROOT = Path(__file__).parents[1]
GOAL = 1 / 1.5
"""Of our rate in theirs."""
STEPS, QUICK_STEPS = 500, 50
CHEAPER = 50
"""Times as many steps for a loop of theirs that takes microseconds."""
ROWS, QUICK_ROWS = 2_000, 50
CONTAINERS, QUICK_CONTAINERS = 5, 1
SIDE_BY_SIDE = 8
"""Episodes that go on at once."""
EPISODES, QUICK_EPISODES = 20, 3
WARM_STEPS = 10
START_S = 120.0
ENDLESS = 10**9
"""Turns of an episode that is to have no end."""
SUPPORT = ROOT / "tests/support"
SERVER = SUPPORT / "openenv_server.py"
GUESS = "I say \\boxed{99}"
"""A guess out of range, after which GEM's game goes on."""
GEM_LOOP = f"""
import sys, gem
env = gem.make("game:GuessTheNumber-v0-hard", max_turns={ENDLESS})
env.reset(seed=0)
print("ready", flush=True)
for line in sys.stdin:
    for _ in range(int(line)):
        assert not env.step({GUESS!r})[2]
    print("done", flush=True)
"""
GEM_VECTOR_LOOP = f"""
import os, sys
out, sys.stdout = sys.stdout, open(os.devnull, "w")
import gem
count = {SIDE_BY_SIDE}
games = ["game:GuessTheNumber-v0-hard"] * count
options = [{{"max_turns": {ENDLESS}}} for _ in games]
env = gem.make_vec(games, vec_kwargs=options, async_mode=True)
env.reset(seed=0)
print("ready", file=out, flush=True)
for line in sys.stdin:
    for _ in range(int(line)):
        assert not any(env.step([{GUESS!r}] * count)[2])
    print("done", file=out, flush=True)
"""
OPENENV_LOOP = """
import sys
from openenv.core.generic_client import GenericEnvClient
with GenericEnvClient(base_url=sys.argv[1]).sync() as env:
    env.reset()
    print("ready", flush=True)
    for line in sys.stdin:
        for _ in range(int(line)):
            assert not env.step({"message": "hello"}).done
        print("done", flush=True)
"""
DATASETS_LOOP = """
import os, sys
import datasets
from agentrl.message import Message
from agentrl.task import Task
from agentrl_envs.dataset.final_answers import exact_reward
file, rows = sys.argv[1:]
datasets.disable_progress_bars()
print("ready", flush=True)
for _ in sys.stdin:
    count = 0
    cache = f"{file}.cache"
    for row in datasets.load_dataset("json", data_files=file, split="train", cache_dir=cache):
        task = Task(prompt=row["prompt"], answer=row["answer"])
        assert exact_reward(task, (Message("assistant", row["answer"]),)) == 1.0
        count += 1
    assert count == int(rows)
    print("done", flush=True)
"""
ENDPOINT = """
import json, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Endpoint(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        usage = {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10}
        answer = {"id": "1", "created": 1, "model": "policy", "usage": usage}
        kind, place = "chat.completion", "message"
        if asked.get("stream"):
            kind, place = "chat.completion.chunk", "delta"
        choice = {"index": 0, "finish_reason": "stop", "logprobs": None}
        choice[place] = {"role": "assistant", "content": "5"}
        body = json.dumps({**answer, "object": kind, "choices": [choice]}).encode()
        media = "application/json"
        if asked.get("stream"):
            body, media = b"data: " + body + b"\\n\\ndata: [DONE]\\n\\n", "text/event-stream"
        self.send_response(200)
        self.send_header("content-type", media)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}/v1"
"""
VERIFIERS_LOOP = (
    ENDPOINT
    + """
import asyncio, os
import verifiers.v1 as vf

os.environ["ENDPOINT_KEY_OF_BENCHMARK"] = "none"
runtime = {"type": "subprocess"}
block = {"taskset": {"id": sys.argv[1]}, "agent": {"harness": {"id": "null"}, "runtime": runtime}}
env = vf.load_environment(vf.resolve_env_config(block))
client = vf.EvalClientConfig(base_url=url, api_key_var="ENDPOINT_KEY_OF_BENCHMARK")
(task,) = env.taskset.include(idx=[0])

async def play(count):
    async with env.serving():
        for _ in range(count):
            (slot,) = env.slots(task)
            episode = await env.run_slot(slot, vf.ModelContext(model="policy", client=client))
            assert episode.ok

print("ready", flush=True)
for line in sys.stdin:
    asyncio.run(play(int(line)))
    print("done", flush=True)
"""
)
INSPECT_LOOP = (
    ENDPOINT
    + """
import tempfile
sys.path.insert(0, sys.argv[1])
from inspect_ai import eval, task_with
from inspect_ai.dataset import MemoryDataset
from inspect_ai.model import get_model
from sums import sums

task = sums()
model = get_model("openai-api/benchmark/policy", base_url=url, api_key="none")
options = {"display": "none", "log_level": "error", "log_realtime": False, "ctl_server": False}

def play():
    with tempfile.TemporaryDirectory() as folder:
        sample = task_with(task, dataset=MemoryDataset([list(task.dataset)[0]]))
        (log,) = eval(sample, model=model, log_dir=folder, **options)
    assert log.status == "success", log.error

print("ready", flush=True)
for line in sys.stdin:
    for _ in range(int(line)):
        play()
    print("done", flush=True)
"""
)


class PeerLoop:
    """A loop in another interpreter, which begins when it is told to."""

    def __init__(self, python: str, program: str, *arguments: str, path: str = "") -> None:
        self._process = subprocess.Popen(
            [python, "-c", program, *arguments],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        self._wait_for("ready")
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()

    def play(self, steps: int) -> float:
        """Do so many steps; return their number."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{steps}\n")
        self._process.stdin.flush()
        self._wait_for("done")
        return float(steps)

    def _wait_for(self, word: str) -> None:
        assert self._process.stdout is not None
        while (line := self._process.stdout.readline()).strip() != word:
            if not line:
                raise RuntimeError(f"the peer's loop ended before {word!r}")


class OwnLoop:
    """Environments of ours in the middle of episodes that have no end."""

    def __init__(self, envs: Sequence[Env], action: Action) -> None:
        self._envs = tuple(envs)
        self._action = action
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        self._runner.run(self._begin())
        return self

    def __exit__(self, *error: object) -> None:
        self._runner.run(self._end())
        self._runner.close()

    def play(self, steps: int) -> float:
        """Do so many steps in each; return their number."""
        return self._runner.run(self._play(steps))

    async def _begin(self) -> None:
        for env in self._envs:
            await env.reset(seed=0)
        await self._play(WARM_STEPS)

    async def _play(self, steps: int) -> float:
        return sum(await asyncio.gather(*(self._play_one(env, steps) for env in self._envs)))

    async def _play_one(self, env: Env, steps: int) -> float:
        for _ in range(steps):
            _, _, terminated, truncated, _ = await env.step(self._action)
            assert not terminated
            assert not truncated
        return float(steps)

    async def _end(self) -> None:
        for env in self._envs:
            await env.close()


def measure_gymnasium(bench: Benchmark) -> None:
    """Walk against a wall of FrozenLake."""
    name = "FrozenLake-v1"
    settings: dict[str, Any] = {"is_slippery": False, "max_episode_steps": ENDLESS}

    def walk() -> Run:
        env = gymnasium.make(name, **settings)
        env.reset(seed=0)

        def play() -> float:
            steps = CHEAPER * _count_steps(bench)
            for _ in range(steps):
                env.step(0)
            return float(steps)

        return play

    with ExitStack() as closing:

        def walk_all() -> Run:
            envs = gymnasium.make_vec(
                name, num_envs=SIDE_BY_SIDE, vectorization_mode="async", **settings
            )
            closing.callback(envs.close)
            envs.reset(seed=0)
            actions = numpy.zeros(SIDE_BY_SIDE, dtype=numpy.int64)

            def play() -> float:
                steps = _count_steps(bench)
                for _ in range(steps):
                    envs.step(actions)
                return float(steps * SIDE_BY_SIDE)

            return play

        make = partial(agentrl.make, f"gymnasium:{name}", **settings)
        _compare_steps(
            bench, "gymnasium", make, agentrl.say("left"), walk_all, walk, count=SIDE_BY_SIDE
        )


def measure_gem(bench: Benchmark) -> None:
    """Guess a number that is out of range."""
    python = python_of("gem")
    if not Path(python).exists():
        bench.notes.append("gem was not measured: tests/peers.sh gem makes what it needs")
        return
    make = partial(
        agentrl.make,
        "gem:game:GuessTheNumber-v0-hard",
        python=python,
        kwargs={"max_turns": ENDLESS},
        start_timeout_s=START_S,
    )
    with ExitStack() as closing:
        bare = partial(_start_peer, closing, CHEAPER * _count_steps(bench), python, GEM_LOOP)
        loop = partial(_start_peer, closing, _count_steps(bench), python, GEM_VECTOR_LOOP)

        def theirs() -> Run:
            play = loop()
            return lambda: SIDE_BY_SIDE * play()

        _compare_steps(bench, "gem", make, agentrl.say(GUESS), theirs, bare, count=SIDE_BY_SIDE)


def measure_openenv(bench: Benchmark) -> None:
    """Say hello to a server that says it back."""
    python, path = python_of("openenv"), str(BENCH / "openenv_next")
    if not (Path(python).exists() and Path(path).exists()):
        bench.notes.append(
            "openenv was not measured: tests/peers.sh openenv openenv_next makes what it needs"
        )
        return
    with ExitStack() as closing:
        url = closing.enter_context(OpenEnvServer(python, path)).url
        make = partial(
            agentrl.make,
            f"openenv:{url}",
            python=python,
            action_key="message",
            start_timeout_s=START_S,
        )
        steps = _count_steps(bench)
        theirs = partial(_start_peer, closing, steps, python, OPENENV_LOOP, url, path=path)
        _compare_steps(bench, "openenv", make, agentrl.say("hello"), theirs)


class OpenEnvServer:
    """A server of OpenEnv's in a process of its own."""

    def __init__(self, python: str, path: str) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        environ = {**os.environ, "PYTHONPATH": path}
        self._process = subprocess.Popen([python, str(SERVER), str(port)], env=environ)

    def __enter__(self) -> Self:
        deadline_s = time.monotonic() + START_S
        while unreachable(self.url):
            if time.monotonic() > deadline_s or self._process.poll() is not None:
                raise RuntimeError(f"the server of OpenEnv did not begin within {START_S:g} s")
            time.sleep(0.1)
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()


def measure_trl(bench: Benchmark) -> None:
    """Count."""

    def count() -> Run:
        env = IncrementEnv()
        env.reset(start=0, target=1)

        def play() -> float:
            steps = CHEAPER * _count_steps(bench)
            for _ in range(steps):
                env.increment(1)
            return float(steps)

        return play

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.jsonl"
        rows = [{"prompt": f"Count to {number}.", "target": number} for number in range(50)]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        make = partial(
            agentrl.make,
            "trl",
            factory="tests.support.counter_factory:IncrementEnv",
            path=str(file),
        )
        _compare_steps(bench, "trl", make, agentrl.call("increment", step=1), bare=count)


def measure_dataset(bench: Benchmark) -> None:
    """Read a file, and answer every row once."""
    places = [BENCH / "datasets", BENCH / "pyarrow"]
    if not all(place.exists() for place in places):
        bench.notes.append(
            "dataset was not measured: tests/peers.sh datasets pyarrow makes what it needs"
        )
        return
    path = os.pathsep.join([*filter(None, sys.path), *map(str, places)])
    with tempfile.TemporaryDirectory() as name, ExitStack() as closing:
        folder = Path(name)

        def theirs() -> Run:
            file, count = _write_rows(bench, folder), _count_rows(bench)
            environ = {"HF_HUB_OFFLINE": "1", "HF_HOME": name}
            with mock.patch.dict(os.environ, environ):
                loop = PeerLoop(sys.executable, DATASETS_LOOP, str(file), str(count), path=path)
            closing.enter_context(loop)
            return lambda: count * loop.play(1)

        runs = bench.compare(
            {
                "dataset": Contender(set_up=partial(_read_rows, bench, folder)),
                "dataset, theirs": Contender(set_up=theirs),
            }
        )
    _state(bench, "dataset", runs["dataset"], runs["dataset, theirs"], unit="row")


def _count_rows(bench: Benchmark) -> int:
    return QUICK_ROWS if bench.quick else ROWS


def _write_rows(bench: Benchmark, folder: Path) -> Path:
    """Write a new file, which no environment has read yet."""
    with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".jsonl", delete=False) as file:
        for number in range(_count_rows(bench)):
            row = {"prompt": f"What is {number} + {number}?", "answer": str(2 * number)}
            file.write(json.dumps(row) + "\n")
    return Path(file.name)


def _read_rows(bench: Benchmark, folder: Path) -> Run:
    path, make = str(_write_rows(bench, folder)), partial(agentrl.make, heldout_fraction=0.5)
    make("dataset", path=str(_write_rows(bench, folder)))  # their imports are not measured either

    async def play() -> float:
        env = make("dataset", path=path)
        count = 0
        for split in SPLITS:
            for task in env.tasks(split):
                await env.reset(options={"task": task})
                _, reward, *_ = await env.step(agentrl.say(task.answer))
                assert reward == 1.0
                count += 1
        await env.close()
        return float(count)

    return lambda: asyncio.run(play())


def measure_verifiers(bench: Benchmark) -> None:
    """Answer a question of a taskset."""
    if not (BENCH / "uv").exists():
        bench.notes.append("verifiers was not measured: tests/peers.sh uv makes what it needs")
        return
    path = str(SUPPORT / "verifiers_envs")
    with tempfile.TemporaryDirectory() as folder:
        environ = write_uv_index(Path(folder))
        make = partial(
            agentrl.make,
            "verifiers:plain_question",
            path=[path],
            config={"agent": {"harness": {"id": "null"}}},
            pass_env=[*environ],
        )
        loop = (VERIFIERS_LOOP, "plain_question")
        with mock.patch.dict(os.environ, environ):
            _compare_episodes(bench, "verifiers", make, loop, path=path)


def measure_inspect(bench: Benchmark) -> None:
    """Answer a sample of a task."""
    folder = SUPPORT / "inspect_tasks"
    make = partial(agentrl.make, f"inspect:{folder / 'sums.py'}@sums")
    _compare_episodes(bench, "inspect", make, (INSPECT_LOOP, str(folder)))


def _compare_episodes(
    bench: Benchmark,
    name: str,
    make: Callable[..., Env],
    loop: tuple[str, str],
    *,
    path: str = "",
) -> None:
    """Answer a package's first task, by its own loop and as an environment."""
    python = python_of(name)
    if not Path(python).exists():
        bench.notes.append(f"{name} was not measured: tests/peers.sh {name} makes what it needs")
        return
    count = QUICK_EPISODES if bench.quick else EPISODES

    def ours(closing: ExitStack) -> Run:
        env = make(python=python, start_timeout_s=START_S)
        runner = closing.enter_context(asyncio.Runner())
        scope = AsyncExitStack()
        closing.callback(lambda: runner.run(scope.aclose()))
        task = next(iter(env.tasks("train")))

        async def begin() -> None:
            await scope.enter_async_context(run_scope())  # a run's episodes share a host
            scope.push_async_callback(env.close)

        async def play(episodes: int) -> float:
            for _ in range(episodes):
                await env.reset(options={"task": task})
                _, _, terminated, _, _ = await env.step(agentrl.say("5"))
                assert terminated
            return float(episodes)

        runner.run(begin())
        runner.run(play(1))
        return lambda: runner.run(play(count))

    with ExitStack() as closing:

        def theirs() -> Run:
            peer = closing.enter_context(PeerLoop(python, *loop, path=path))
            peer.play(1)
            return partial(peer.play, count)

        runs = bench.compare(
            {
                name: Contender(set_up=partial(ours, closing)),
                f"{name}, theirs": Contender(set_up=theirs),
            }
        )
    _state(bench, name, runs[name], runs[f"{name}, theirs"], unit="episode")


def measure_harbor(bench: Benchmark) -> None:
    """Start a container, run one command in it, remove it."""
    if why := why_not():
        bench.notes.append(f"harbor was not measured: {why}")
        return
    count = QUICK_CONTAINERS if bench.quick else CONTAINERS
    image = SandboxSettings().image

    async def use_provider() -> float:
        provider = DockerProvider()
        try:
            for _ in range(count):
                container = await provider.start(ContainerSpec(image=image))
                output = await container.exec(["true"], timeout_s=60)
                assert output.exit_code == 0
                await container.stop()
        finally:
            await provider.close()
        return float(count)

    def use_command() -> float:
        for _ in range(count):
            container = docker(
                ["run", "--detach", "--network=none", "--init", image, "sleep", "600"]
            )
            docker(["exec", container, "true"])
            docker(["rm", "--force", container])
        return float(count)

    runs = bench.compare(
        {
            "harbor": Contender(set_up=lambda: lambda: asyncio.run(use_provider())),
            "harbor, theirs": Contender(set_up=lambda: use_command),
        }
    )
    ours, theirs = runs["harbor"], runs["harbor, theirs"]
    bench.rate("harbor", ours, unit="containers", by="wall")
    bench.rate("harbor, theirs", theirs, unit="containers", by="wall")
    bench.ratio("harbor, rate in theirs", ours, theirs, peer="docker", by="wall", goal=GOAL)


GROUPS: Mapping[str, Callable[[Benchmark], None]] = {
    "gymnasium": measure_gymnasium,
    "gem": measure_gem,
    "openenv": measure_openenv,
    "trl": measure_trl,
    "dataset": measure_dataset,
    "verifiers": measure_verifiers,
    "inspect": measure_inspect,
    "harbor": measure_harbor,
}


def _count_steps(bench: Benchmark) -> int:
    return QUICK_STEPS if bench.quick else STEPS


def _start_peer(
    closing: ExitStack, steps: int, python: str, program: str, *args: str, path: str = ""
) -> Run:
    loop = closing.enter_context(PeerLoop(python, program, *args, path=path))
    loop.play(WARM_STEPS)
    return partial(loop.play, steps)


def _compare_steps(
    bench: Benchmark,
    name: str,
    make: Callable[[], Env],
    action: Action,
    theirs: Callable[[], Run] | None = None,
    bare: Callable[[], Run] | None = None,
    *,
    count: int = 1,
) -> None:
    """Compare `count` environments with a package's own loop, and give a bare call's time."""
    with ExitStack() as closing:

        def ours() -> Run:
            loop = closing.enter_context(OwnLoop([make() for _ in range(count)], action))
            return partial(loop.play, _count_steps(bench))

        contenders = {name: Contender(set_up=ours)}
        if theirs is not None:
            contenders[f"{name}, theirs"] = Contender(set_up=theirs)
        if bare is not None:
            contenders[f"{name}, bare"] = Contender(set_up=bare)
        runs = bench.compare(contenders)
    if theirs is not None:
        _state(bench, name, runs[name], runs[f"{name}, theirs"], unit="step")
    else:
        bench.cost(f"{name}, a step", runs[name])
    if bare is not None:
        bench.cost(f"{name}, a bare call", runs[f"{name}, bare"])


def _state(bench: Benchmark, name: str, ours: Any, theirs: Any, *, unit: str) -> None:
    article = "an" if unit == "episode" else "a"
    bench.cost(f"{name}, {article} {unit}", ours)
    bench.cost(f"{name}, {article} {unit}, theirs", theirs)
    bench.ratio(f"{name}, rate in theirs", ours, theirs, peer=name, goal=GOAL)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print and write."""
    options = parser(__doc__)
    options.add_argument("--only", nargs="+", choices=GROUPS, default=[*GROUPS], metavar="GROUP")
    chosen = options.parse_args(arguments)
    bench = Benchmark.from_arguments("imports", chosen)
    for group in chosen.only:
        bench.console.print(f"measuring {group}", highlight=False)
        GROUPS[group](bench)
    bench.finish()


if __name__ == "__main__":
    main()
