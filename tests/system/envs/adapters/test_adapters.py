"""Environments of GEM and OpenEnv, played for real in their own venvs (`peers.sh`)."""

import asyncio
import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import agentrl
from agentrl.env import Action
from agentrl.errors import EnvError
from agentrl.message import ToolCall
from agentrl.runtime.scope import run_scope
from agentrl.testing import check_env
from agentrl_envs.adapters.gem import GemEnv
from agentrl_envs.adapters.openenv import OpenEnvEnv
from tests.support.foreign_packages import BENCH, python_of
from tests.support.ports import free_port

SUPPORT = Path(__file__).parents[3] / "support"
START_S = 250.0
pytestmark = pytest.mark.timeout(1500)
LONG: dict[str, Any] = {"timeout_s": 60.0}
GUESS = "game:GuessTheNumber-v0-hard"


def gem(id: str = GUESS, **settings: Any) -> GemEnv:
    return GemEnv(id, python=python_of("gem"), start_timeout_s=START_S, **LONG, **settings)


def guess(number: int) -> Action:
    return agentrl.say(f"I say \\boxed{{{number}}}")


async def play(env: GemEnv, numbers: list[int]) -> list[tuple[str, float, bool, bool]]:
    steps = [await env.step(guess(number)) for number in numbers]
    return [(s[0].messages[0].text, s[1], s[2], s[3]) for s in steps]


@pytest.mark.gem
async def test_gem_plays_by_seed_and_forks_by_process() -> None:
    async with run_scope():
        env = gem()
        first, second = islice(env.tasks("train"), 2)
        assert first.seed != second.seed
        observation, _ = await env.reset(options={"task": first})
        assert observation.tools == ()
        (shown,) = observation.messages
        assert shown.text.startswith("You are playing Guess The Number.")
        assert shown.text.endswith("Enter your next guess.")
        told = await play(env, [50, 49])
        assert "you guessed 50" in told[0][0]
        copies = [await env.fork(), await env.fork()]
        ends = [await play(copy, [1, 2]) for copy in copies]
        assert ends[0] == ends[1] == await play(env, [1, 2])
        await env.close()
        assert (await play(copies[0], [3])) == (await play(copies[1], [3]))
        for copy in copies:
            await copy.close()
        # The same task again, on another episode: the same world.
        again = gem()
        await again.reset(options={"task": first})
        assert await play(again, [50, 49]) == told
        refusal = await again.step(agentrl.call("guess", number=3))
        assert refusal[0].messages[0].role == "tool"
        assert refusal[1:4] == (0.0, False, False)
        await again.close()


@pytest.mark.gem
async def test_gem_keeps_the_promises_of_an_environment() -> None:
    promises = await check_env(gem())
    assert {"forks do not interfere", "a step can be cancelled", "reset is deterministic"} <= {
        *promises
    }


@pytest.mark.gem
async def test_gems_ends_are_ours() -> None:
    async with run_scope():
        env = gem("game:GuessTheNumber-v0-easy")
        await env.reset(seed=0)
        step = await env.step(agentrl.say("no number at all"))
        assert step[2:4] == (True, False)
        with pytest.raises(RuntimeError, match="no episode"):
            await env.step(guess(1))
        await env.close()
        with pytest.raises(EnvError, match="Environment game:None not found"):
            await gem("game:None").reset(seed=0)


@pytest.mark.openenv
class TestOpenEnv:
    """One server a release for all of these: it takes its interpreter long to import OpenEnv."""

    @pytest.fixture(
        scope="class",
        params=["0.3.0", pytest.param("0.10.0", marks=pytest.mark.openenv_next)],
    )
    @staticmethod
    def url(request: pytest.FixtureRequest) -> Iterator[str]:
        port = free_port()
        command = [python_of("openenv"), str(SUPPORT / "openenv_server.py"), str(port)]
        # The newer release, in front of the older one and with its dependencies.
        path = {"PYTHONPATH": str(BENCH / "openenv_next")} if request.param == "0.10.0" else {}
        with subprocess.Popen(command, env={**os.environ, **path}) as server:
            deadline_s = time.monotonic() + START_S
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port)).close()
                    break
                except OSError:
                    assert time.monotonic() < deadline_s
                    assert server.poll() is None
                    time.sleep(0.1)
            yield f"http://127.0.0.1:{port}"
            server.kill()

    def env(self, url: str, **settings: Any) -> OpenEnvEnv:
        return OpenEnvEnv(
            url, python=python_of("openenv"), start_timeout_s=START_S, **LONG, **settings
        )

    async def test_what_the_agent_says_becomes_an_action(self, url: str) -> None:
        look = {"function": {"name": "look", "parameters": {}}}
        async with run_scope():
            env = self.env(url, action_key="message", instructions="Talk.", options={"level": 2})
            (task,) = islice(env.tasks("train"), 1)
            observation, _ = await env.reset(options={"task": task})
            prompt, shown = observation.messages[0].text.split("\n\n")
            assert prompt == "Talk."
            assert json.loads(shown) == {"echo": f"ready {task.seed} {{'level': 2}}", "count": 0}
            step = await env.step(agentrl.say("hello"))
            assert json.loads(step[0].messages[0].text) == {"echo": "hello", "count": 1}
            assert step[1:4] == (5.0, False, False)
            assert (await env.step(agentrl.say("bye")))[1:4] == (3.0, True, False)
            await env.close()

            env = self.env(url, tools=[look], observation_key="echo")
            await env.reset(seed=1)
            step = await env.step(Action("", (ToolCall("c", "look", {"message": "up"}),)))
            (answer,) = step[0].messages
            assert (answer.role, answer.tool_call_id, answer.text) == ("tool", "c", "up")
            keyed = self.env(url, tools=[look], tool_key="message", observation_key="echo")
            await keyed.reset(seed=1)
            step = await keyed.step(Action("", (ToolCall("c", "look", {"message": "up"}),)))
            assert step[0].messages[0].text == "look", "no argument names another tool"
            await keyed.close()
            step = await env.step(agentrl.say('{"message": "as JSON"}'))
            assert step[0].messages[0].text == "as JSON"
            for wrong in ("no JSON", "[1]"):
                step = await env.step(agentrl.say(wrong))
                assert "one JSON object" in step[0].messages[0].text
            step = await env.step(agentrl.call("listen"))
            assert "the tools are look" in step[0].messages[0].text
            # Wrong arguments are the agent's: it is told, and the episode goes on.
            step = await env.step(agentrl.say('{"massage": "wrong field"}'))
            assert "message: Field required" in step[0].messages[0].text
            assert "massage: Extra inputs are not permitted" in step[0].messages[0].text
            assert step[1:4] == (0.0, False, False)
            step = await env.step(Action("", (ToolCall("c", "look", {"message": [1]}),)))
            (answer,) = step[0].messages
            assert (answer.role, answer.tool_call_id) == ("tool", "c")
            assert "message: Input should be a valid string" in answer.text
            step = await env.step(agentrl.say('{"message": "goes on"}'))
            assert step[0].messages[0].text == "goes on"
            await env.close()

    @pytest.mark.parametrize("broken", ["raise", "invalid"])
    async def test_what_breaks_in_the_server_is_no_fault_of_the_agent(
        self, url: str, broken: str
    ) -> None:
        """An environment that fills a model of its own wrongly says VALIDATION_ERROR, too."""
        async with run_scope():
            env = self.env(url, action_key="message")
            await env.reset(seed=1)
            with pytest.raises(EnvError, match=r"the server says (EXECUTION|VALIDATION)_ERROR"):
                await env.step(agentrl.say(broken))
            await env.close()

    async def test_a_session_that_is_lost_is_a_failure_and_no_other_session(self, url: str) -> None:
        async with run_scope():
            env = self.env(url, action_key="message", observation_key="echo")
            await env.reset(seed=1)
            with pytest.raises(EnvError, match="closed the connection"):
                await env.step(agentrl.say("hang up"))
            with pytest.raises(EnvError, match="closed the connection"):
                await env.step(agentrl.say("after"))
            await env.close()

    async def test_an_answer_that_comes_too_late_is_nobodys(self, url: str) -> None:
        """With the client's own deadline the next step would get the answer to this one."""
        async with run_scope():
            settings = {"action_key": "message", "observation_key": "echo"}
            warm = self.env(url, **settings)
            await warm.reset(seed=0)
            env = self.env(url, **settings)
            await env.reset(seed=1)
            episode = env._episode  # pyright: ignore[reportPrivateUsage]
            usual_s, episode.timeout_s = episode.timeout_s, 2.0
            with pytest.raises(EnvError, match=r"step took more than 2 s"):
                await env.step(agentrl.say("sleep9"))
            episode.timeout_s = usual_s
            with pytest.raises(EnvError):
                await env.step(agentrl.say("after"))
            observation, _ = await env.reset(seed=2)
            assert observation.messages[0].text.startswith("ready ")
            assert (await env.step(agentrl.say("fresh")))[0].messages[0].text == "fresh"
            assert (await warm.step(agentrl.say("mine")))[0].messages[0].text == "mine"
            await asyncio.gather(env.close(), warm.close())

    async def test_a_session_ends_with_its_episode(self, url: str) -> None:
        """The server has room for eight."""
        async with run_scope():
            env = self.env(url, action_key="message", observation_key="echo")
            for seed in range(12):
                observation, _ = await env.reset(seed=seed)
                assert observation.messages[0].text.startswith("ready ")
            await env.close()

    async def test_a_server_that_dies_is_a_failure_and_no_reward(self, url: str) -> None:
        """The last one: this ends the server."""
        async with run_scope():
            env = self.env(url, action_key="message")
            await env.reset(seed=1)
            with pytest.raises(EnvError, match=r"openenv: step: .*closed the connection"):
                await env.step(agentrl.say("die"))
            with pytest.raises(EnvError, match="openenv: open: Connection"):
                await env.reset(seed=2)
            await env.close()


@pytest.fixture
def strange_url() -> Iterator[str]:
    """Return the address of a server that speaks protocols that are not OpenEnv's."""
    command = [python_of("openenv"), str(SUPPORT / "other_protocol_server.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        server.kill()


@pytest.mark.openenv
async def test_a_protocol_that_is_not_known_is_named(strange_url: str) -> None:
    """A mutant that takes what is missing for a reward of 0 and no end is caught."""
    async with run_scope():
        for path in ("word", "endless", "list", "nowhere"):
            env = OpenEnvEnv(
                f"{strange_url}/{path}",
                python=python_of("openenv"),
                start_timeout_s=START_S,
                **LONG,
            )
            with pytest.raises(EnvError, match=r"OpenEnv 0\.2\.3 to 0\.10 are played"):
                await env.reset(seed=1)
            await env.close()


@pytest.mark.openenv
async def test_an_answer_that_nobody_asked_for_is_paid_to_no_action(strange_url: str) -> None:
    async with run_scope():
        env = OpenEnvEnv(
            f"{strange_url}/twice", python=python_of("openenv"), start_timeout_s=START_S, **LONG
        )
        await env.reset(seed=1)
        with pytest.raises(EnvError, match=r"before step the server said .* which nobody asked"):
            await env.step(agentrl.say("{}"))
        await env.close()


@pytest.mark.openenv
async def test_a_server_that_does_not_run_is_named() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # and does not listen
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        async with run_scope():
            env = OpenEnvEnv(url, python=python_of("openenv"), start_timeout_s=START_S, **LONG)
            with pytest.raises(EnvError, match=r"no server answers at ws://127.* start it, or set"):
                await env.reset(seed=1)
            await env.close()
