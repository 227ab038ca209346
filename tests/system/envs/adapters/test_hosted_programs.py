"""Environments of verifiers and tasks of Inspect, played by the packages through the gateway."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import agentrl
from agentrl.env import Action, Observation
from agentrl.errors import ConfigError, EnvError
from agentrl.registry import make
from agentrl.runtime.scope import run_scope
from agentrl.task import SPLITS, Task
from agentrl_envs.adapters.hosted_program import HostedProgramEnv
from agentrl_sandbox.reaping.engine import ListedContainer, default_engine
from agentrl_sandbox.reaping.engine import containers as list_containers
from agentrl_sandbox.reaping.owner import LeaseOwner
from tests.support.examples import spread_cases
from tests.support.foreign_packages import BENCH, python_of, write_uv_index
from tests.support.processes import children, command_line

SUPPORT = Path(__file__).parents[3] / "support"
EXAMPLES = Path(os.environ.get("AGENTRL_VERIFIERS_EXAMPLES", BENCH / "verifiers_examples"))
FOLDERS = sorted(map(str, EXAMPLES.glob("*")))
NULL = {"agent": {"harness": {"id": "null"}}}
pytestmark = pytest.mark.timeout(1500)
Reply = str | Action


@pytest.fixture
def offline(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return variables with which programs of verifiers are installed from files of the peer."""
    variables = write_uv_index(tmp_path_factory.mktemp("uv"))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return [*variables]


def verifiers(name: str, pass_env: Sequence[str] = (), **settings: Any) -> HostedProgramEnv:
    settings = {"path": [str(SUPPORT / "verifiers_envs")], "start_timeout_s": 500.0} | settings
    env = make(
        f"verifiers:{name}", python=python_of("verifiers"), pass_env=list(pass_env), **settings
    )
    assert isinstance(env, HostedProgramEnv)
    return env


def inspect(name: str, **settings: Any) -> HostedProgramEnv:
    where = f"inspect:{SUPPORT / 'inspect_tasks' / name}"
    env = make(where, python=python_of("inspect"), start_timeout_s=500.0, **settings)
    assert isinstance(env, HostedProgramEnv)
    return env


def first_task(env: HostedProgramEnv) -> Task:
    return next(iter([*env.tasks("train"), *env.tasks("heldout")]))


async def play(
    env: HostedProgramEnv, *replies: Reply, task: Task | None = None
) -> tuple[list[Observation], float, dict[str, Any]]:
    """Play a task to its end, which has to come with the last reply."""
    observation, _ = await env.reset(options={"task": task or first_task(env)})
    seen = [observation]
    for at, reply in enumerate(replies, 1):
        action = agentrl.say(reply) if isinstance(reply, str) else reply
        observation, reward, terminated, _, info = await env.step(action)
        assert terminated == (at == len(replies))
        if terminated:
            return seen, reward, dict(info)
        seen.append(observation)
    raise AssertionError("give a reply")


def tools_of(observation: Observation) -> list[str]:
    return [tool["function"]["name"] for tool in observation.tools or ()]


@pytest.mark.uv
@pytest.mark.verifiers
async def test_environments_of_verifiers_pay_as_verifiers_counts(offline: list[str]) -> None:
    async with run_scope():
        env = verifiers("plain_question", offline, config=NULL)
        train, heldout = [*env.tasks("train")], [*env.tasks("heldout")]
        assert len(train) + len(heldout) == 30
        assert heldout
        task = next(task for task in train if task.messages[-1].text == "What is 3 + 2?")
        seen, reward, info = await play(env, "5", task=task)
        assert [(m.role, m.text) for m in seen[0].messages] == [
            ("system", "Be brief."),
            ("user", "What is 3 + 2?"),
        ]
        assert (reward, info["reward_components"]) == (1.5, {"right": 1.0, "short": 0.5})
        assert info["metrics"] == {"length": 1.0}
        assert (await play(env, "a number that is not five", task=task))[1] == 0.0
        await env.close()


@pytest.mark.nightly
@pytest.mark.uv
@pytest.mark.verifiers
async def test_users_tools_programs_and_other_harnesses_of_verifiers_pay(
    offline: list[str],
) -> None:
    async with run_scope():
        spoken = verifiers("scripted_user", offline, config=NULL, size=20)
        task = next(iter(spoken.tasks("train")))
        number = task.data["idx"]
        seen, reward, _ = await play(spoken, f"word{number}", f"other{number}", task=task)
        assert [one.messages[-1].text for one in seen] == [
            f"Repeat: word{number}",
            f"Repeat: other{number}",
        ]
        assert reward == 1.0
        assert (await play(spoken, "nonsense", "nonsense", task=task))[1] == 0.0

        atlas = verifiers("tool_server", offline, config=NULL)
        task = first_task(atlas)
        land, town = f"land{task.data['idx']}", f"town{task.data['idx']}"
        look = agentrl.call("atlas_capital", name=land)
        seen, reward, _ = await play(atlas, look, f"It is {town}.", task=task)
        assert tools_of(seen[0]) == ["atlas_capital"]
        assert town in seen[1].messages[-1].text
        assert reward == 1.0
        assert (await play(atlas, f"It is {town}.", task=task))[1] == 0.0

        programs = verifiers("runtime_exec", offline, config=NULL, runtime="subprocess")
        task = first_task(programs)
        assert (await play(programs, f"print({task.data['idx']})", task=task))[1] == 1.0
        assert (await play(programs, "print(", task=task))[1] == 0.0

        guarded = verifiers("rewritten_answers", offline, config=NULL)
        assert (await play(guarded, "HALT"))[1] == 1.0
        assert (await play(guarded, "a SECRET"))[1] == 2.0
        assert (await play(guarded, "hello"))[1] == 0.0
        for one in (spoken, atlas, programs, guarded):
            await one.close()


@pytest.mark.verifiers
async def test_a_harness_of_its_own_trains_every_context_and_ends_with_its_episode() -> None:
    async with run_scope():
        env = verifiers("own_harness")
        task = first_task(env)
        seen, reward, _ = await play(env, "a note", str(task.data["idx"]), task=task)
        assert [one.messages[-1].text for one in seen] == [
            f"Note {task.data['idx']}.",
            "Your note: a note. Answer.",
        ]
        assert seen[1].anew
        assert reward == 1.0
        # Two at once do not meet, and one that is given up leaves no process of its own.
        other = verifiers("own_harness")
        await env.reset(options={"task": task})
        await other.reset(options={"task": task})
        step = await env.step(agentrl.say("mine"))
        assert "Your note: mine." in step[0].messages[-1].text
        (host,) = (pid for pid in children(os.getpid()) if b"host.py" in command_line(pid))
        await env.close()
        step = await other.step(agentrl.say("theirs"))
        assert "Your note: theirs." in step[0].messages[-1].text
        (episode,) = children(host)
        assert children(episode)
        os.kill(episode, signal.SIGKILL)
        with pytest.raises(EnvError, match="killed by signal 9"):
            await other.step(agentrl.say("too late"))
        await other.close()
        assert not children(host)


CONTAINER = {"agent": {"runtime": {"type": "docker", "image": "agentrl-sandbox"}}}
PLAY_IN_CONTAINER = """
import asyncio, sys
import agentrl
from agentrl.runtime.scope import run_scope
from tests.system.envs.adapters.test_hosted_programs import CONTAINER, first_task, play, verifiers

async def main():
    env = verifiers("container_exec", sys.argv[1:], config=CONTAINER)
    task = first_task(env)
    async with run_scope():
        for command in ("cp secret.txt out.txt", "cp out.txt secret.txt"):
            print((await play(env, command, task=task))[1], flush=True)
        await env.reset(options={"task": task})
        print("asked", flush=True)
        await asyncio.sleep(200)

asyncio.run(main())
"""


def containers_of_verifiers() -> list[ListedContainer]:
    return list_containers(default_engine(), "verifiers.run")


@pytest.mark.docker_bridge
@pytest.mark.verifiers
def test_containers_of_verifiers_end_with_their_episode_and_with_a_killed_run() -> None:
    variables = [name for name in ("DOCKER_HOST",) if name in os.environ]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", PLAY_IN_CONTAINER, *variables]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environ, text=True) as run:
        assert run.stdout is not None
        assert [run.stdout.readline() for _ in range(3)] == ["1.0\n", "0.0\n", "asked\n"]
        (container,) = containers_of_verifiers()
        owner = LeaseOwner.find(container.labels["verifiers.run"])
        assert owner is not None
        assert owner.pid == run.pid
        run.kill()
    deadline_s = time.monotonic() + 30
    while left := containers_of_verifiers():
        assert time.monotonic() < deadline_s, left
        time.sleep(0.05)


@pytest.mark.docker
@pytest.mark.verifiers
def test_an_engine_elsewhere_is_refused_for_containers_of_verifiers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:9")
    with pytest.raises(
        ConfigError, match=r"DOCKER_HOST is tcp://127\.0\.0\.1:9: the engine must be"
    ):
        first_task(verifiers("container_exec", ["DOCKER_HOST"], config=CONTAINER))


@pytest.mark.verifiers
@pytest.mark.parametrize(
    ("name", "settings", "wrong"),
    spread_cases(
        [
            ("two_players", {}, "first, second would all be the policy"),
            ("two_players", {"role": "third"}, "no role 'third'; the roles are first, second"),
            ("runtime_exec", {"config": NULL}, r"ProgramTask\.passed, ProgramTask\.setup.*docker"),
            ("plain_question", {}, "harness bash.*runtime: docker"),
            ("container_exec", {"runtime": "subprocess"}, "container_exec needs a container; set"),
            ("plain_question", {"config": {"agent": {"harnes": {}}}}, "harnes"),
            ("plain_question", {"config": NULL, "path": []}, "taskset 'plain_question' not found"),
        ],
        2,
    ),
)
def test_what_verifiers_cannot_play_here_is_refused_before_a_run(
    name: str, settings: dict[str, Any], wrong: str
) -> None:
    with pytest.raises(ConfigError, match=wrong):
        first_task(verifiers(name, **settings))


@pytest.mark.inspect
async def test_tasks_of_inspect_pay_their_scores() -> None:
    async with run_scope():
        env = inspect("sums.py@sums", args={"first": 4})
        train, heldout = [*env.tasks("train")], [*env.tasks("heldout")]
        assert {task.id for task in (*train, *heldout)} == {f"sum-{a}" for a in range(4, 34)}
        assert heldout
        task = next(task for task in train if task.id == "sum-6")
        seen, reward, info = await play(env, "8", task=task)
        # One request, the question: nothing else was asked before or after.
        assert [m.text for m in seen[0].messages] == ["What is 6 + 2?"]
        assert (reward, info["reward_components"]) == (1.0, {"match": 1.0})
        assert (await play(env, "nonsense", task=task))[1] == 0.0
        # Of a conversation whose messages have ids, and of more epochs than the one that is played.
        told = inspect("sums.py@sums_told")
        seen, reward, _ = await play(told, "4")
        assert [m.text for m in seen[0].messages] == ["What is 1 + 1?", "2", "What is 2 + 2?"]
        assert reward == 1.0
        for one in (env, told):
            await one.close()


@pytest.mark.inspect
async def test_agents_of_inspect_play_with_its_tools() -> None:
    async with run_scope():
        agent = inspect("agents.py@looked_up")
        task = next(t for s in SPLITS for t in agent.tasks(s) if t.id == "nails")
        look = agentrl.call("stock", item="nails")
        seen, reward, _ = await play(
            agent, look, agentrl.call("submit", answer="seventeen"), task=task
        )
        assert tools_of(seen[0]) == ["stock", "submit"]
        assert seen[1].messages[-1].text == "seventeen"
        assert reward == 1.0
        assert (await play(agent, agentrl.call("submit", answer="none"), task=task))[1] == 0.0

        boxed = inspect("agents.py@in_a_sandbox")
        read = agentrl.call("bash", command="cat note.txt")
        seen, reward, _ = await play(boxed, read, agentrl.call("submit", answer="plum"))
        assert "plum" in seen[1].messages[-1].text
        assert reward == 1.0

        measured = inspect("scorers.py@measured_task", key="length")
        assert (await play(measured, "hello"))[1] == 0.05
        for one in (agent, boxed, measured):
            await one.close()


@pytest.mark.inspect
@pytest.mark.parametrize(
    ("name", "replies", "wrong"),
    spread_cases(
        [
            ("ending_task", ["hello"], "its process ended with code 0"),
            ("raising_task", ["hello"], "this scorer is broken"),
            ("graded_task", ["hello"], "graded by a model, and none is configured"),
            ("asking_task", ["hello", "good"], "asks the policy itself"),
            ("unclear_task", ["hello"], "'rather good', which is no reward"),
            ("measured_task", ["hello"], "gives length, said; set key:"),
        ],
        2,
    ),
)
async def test_what_inspect_did_not_score_is_a_failure(
    name: str, replies: list[str], wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    env = inspect(f"scorers.py@{name}")
    with pytest.raises(EnvError, match=wrong):
        await play(env, *replies)
    await env.close()
    left = [name for name in os.listdir(tmp_path) if name.startswith("agentrl-hosted-")]
    assert not left, "files of an episode live on"


@pytest.mark.inspect
@pytest.mark.parametrize(
    ("name", "wrong"),
    spread_cases(
        [
            ("broken.py@never", "no disk for tasks"),
            ("agents.py", "its tasks are .*@looked_up"),
            ("agents.py@nothing", "names no task of the file"),
            ("missing.py@task", "No such file"),
            ("sums.py@sums_of_another", "it asks mockllm/model, a model of its own"),
            ("scorers.py@untargeted_parts_task", "a blank target, for which includes pays 1"),
        ],
        1,
    ),
)
def test_what_inspect_cannot_load_is_refused_before_a_run(name: str, wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong):
        first_task(inspect(name))


@pytest.mark.inspect
def test_samples_of_inspect_without_a_target_are_for_scorers_that_read_none() -> None:
    wrong = r"1 of 2 samples \(the first is 'bare'\) have a blank target, for which match pays 1"
    with pytest.raises(ConfigError, match=wrong):
        first_task(inspect("scorers.py@untargeted_task", scorer="match"))
    env = inspect("scorers.py@untargeted_task", scorer="measured", key="length")
    assert {task.id for split in SPLITS for task in env.tasks(split)} == {"told", "bare"}


@pytest.mark.inspect
def test_a_sandbox_without_its_engine_is_refused_before_a_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:9")
    with pytest.raises(ConfigError, match="its sandbox is docker, and docker "):
        first_task(inspect("agents.py@in_a_container", pass_env=["DOCKER_HOST"]))


@pytest.mark.verifiers
@pytest.mark.skipif(not FOLDERS, reason=f"{EXAMPLES} has no examples of verifiers")
@pytest.mark.parametrize("name", [Path(folder).name for folder in FOLDERS])
async def test_an_example_of_verifiers_is_played_or_refused_by_name(
    offline: list[str], name: str
) -> None:
    """The table of docs/verifiers.md; nonsense is never paid more than the environment says."""
    async with run_scope():
        env = verifiers(name, offline, config=NULL, path=FOLDERS, runtime="subprocess", size=8)
        try:
            task = first_task(env)
        except ConfigError as error:
            # By name, with the reason behind it.
            assert re.search(rf"{name}.*: \w", str(error), re.DOTALL)  # noqa: PT017
        else:
            observation, _ = await env.reset(options={"task": task})
            assert observation.messages
            await env.close()
