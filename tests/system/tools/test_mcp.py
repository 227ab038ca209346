"""MCP tools against real servers: one of the SDK (`mcp_server.py`, stdio and HTTP), one without.

Mutants seen caught: our environment handed to a server; refused arguments, or a tool's error, that
are no answers; no limit of a line; a fork that needs no setting; a replay that is not compared;
equal sources that are asked twice; a server that may not greet.
"""

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import agentrl
from agentrl.authoring.tool_env import ToolEnv
from agentrl.authoring.toolset import ToolSet, resolve_tools, schemas_of
from agentrl.errors import ConfigError, ForkUnsupported, ToolFailure
from agentrl.message import Image, Message, ToolCall
from agentrl.runtime.scope import run_scope
from agentrl.testing.tool import check_tool
from agentrl.tool import ToolContext, ToolResult
from agentrl_tools.mcp import McpTools, mcp_tools
from tests.support.ports import free_port
from tests.support.processes import runs
from tests.support.watchdog import watched

SUPPORT = Path(__file__).parents[2] / "support"
CONTEXT = ToolContext(task_id="test", sample=0, seed=0)
DEADLINE_S = 60.0


class Server:
    """A server's command, and what it wrote into its log."""

    def __init__(self, log: Path) -> None:
        self.log = log

    def full(self, **settings: Any) -> McpTools:
        """Return the tools of the SDK's server."""
        command = [sys.executable, str(SUPPORT / "mcp_server.py"), "stdio", str(self.log)]
        return mcp_tools(command=command, connect_timeout_s=DEADLINE_S, **settings)

    def tiny(self, mode: str = "good", **settings: Any) -> McpTools:
        """Return the tools of the server without an SDK."""
        command = [sys.executable, "-I", "-S", str(SUPPORT / "tiny_mcp_server.py"), mode]
        settings = {"connect_timeout_s": DEADLINE_S, "allow": ["add", "process"], **settings}
        return mcp_tools(command=[*command, str(self.log)], **settings)

    @property
    def lines(self) -> list[str]:
        """Return what it noted."""
        return self.log.read_text().splitlines() if self.log.exists() else []

    async def noted(self, line: str) -> None:
        """Wait until it noted a line."""
        async with asyncio.timeout(DEADLINE_S):
            while line not in self.lines:  # noqa: ASYNC110 - another process writes it
                await asyncio.sleep(0.02)


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path / "log")


@asynccontextmanager
async def opened(*sources: Any) -> AsyncGenerator[ToolSet]:
    box = await ToolSet.open(sources, context=CONTEXT, timeout_s=DEADLINE_S)
    try:
        yield box
    finally:
        await box.close()


async def ask(box: ToolSet, tool: str, /, **arguments: Any) -> ToolResult:
    return await box.call(ToolCall("1", tool, arguments))


# -- over stdio -----------------------------------------------------------------------------------


async def test_what_a_server_answers_is_what_the_model_reads(server: Server) -> None:
    async with opened(server.full(result_chars=500, name="files")) as box:
        assert (await ask(box, "add", amount=2)).content == "the total is 2"
        assert (await ask(box, "add", amount=3)).content == "the total is 5"
        assert (await ask(box, "garbage")).content == "said"
        assert (await ask(box, "structured")).content == '{\n  "answer": 42\n}'
        assert (await ask(box, "files_close", self="the door")).content == "closed the door"
        assert (await ask(box, "dots_and_slashes")).content == "dotted"
        cut = await ask(box, "huge", size=700)
        assert cut.content == "x" * 500 + "\n(200 more characters were cut)"
        text, image = (await ask(box, "picture")).content
        assert text == "a picture:"
        assert isinstance(image, Image)
        assert image.data.startswith(b"\x89PNG")
        assert image.media_type == "image/png"


async def test_a_tools_error_is_an_answer(server: Server) -> None:
    async with opened(server.full()) as box:
        refused = await ask(box, "refuse", why="not today")
        assert (refused.status, "not today" in str(refused.content)) == ("error", True)
        wrong = await ask(box, "add", amount="many")
        assert (wrong.status, "integer" in str(wrong.content)) == ("error", True)
    async with opened(server.tiny()) as box:
        wrong = await ask(box, "add", amount="many")
        assert (wrong.status, "integer" in str(wrong.content)) == ("error", True)


async def test_a_server_sees_no_variable_but_those_named(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "x")
    monkeypatch.setenv("WANTED", "y")
    source = server.full(env={"GIVEN": "kept to itself"}, pass_env=["WANTED"])
    assert "kept to itself" not in repr(source)
    async with opened(source) as box:
        names = str((await ask(box, "environment")).content).split()
    # LC_CTYPE is set by Python itself; the lease is how a killed run's servers are found.
    assert {*names} - {"LC_CTYPE"} == {"AGENTRL_LEASE", "GIVEN", "WANTED"}
    with pytest.raises(ConfigError, match="NOT_THERE"):
        await resolve_tools([server.full(pass_env=["NOT_THERE"])], timeout_s=DEADLINE_S)


async def test_a_call_that_hangs_fails_the_trajectory_and_is_cancelled_in_the_server(
    server: Server,
) -> None:
    async with opened(server.full(timeout_s=10.0)) as box:
        with pytest.raises(ToolFailure, match="more than timeout_s=10"):
            await ask(box, "hang")
        await server.noted("hang cancelled")
        # The connection is as good as before.
        assert (await ask(box, "add", amount=1)).content == "the total is 1"


async def test_a_cancelled_caller_cancels_the_call_in_the_server(server: Server) -> None:
    async with opened(server.full()) as box:
        call = asyncio.create_task(ask(box, "hang"))
        await server.noted("hang began")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await server.noted("hang cancelled")


async def test_a_server_that_dies_in_a_call_is_a_failure_that_tells_its_last_words(
    server: Server,
) -> None:
    async with opened(server.full()) as box:
        with pytest.raises(ToolFailure, match=r"'crash'.*ended with code 3.*out of cheese"):
            await ask(box, "crash")
        with pytest.raises(ToolFailure, match="it is gone"):
            await ask(box, "add", amount=1)


@watched
async def test_a_message_over_the_limit_ends_the_connection(server: Server) -> None:
    async with opened(server.full(message_bytes=65_536)) as box:
        with pytest.raises(ToolFailure, match="a line of more than 65536 bytes"):
            await ask(box, "huge", size=200_000)


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [("depth", "nested more than 64 deep"), ("digits", "308 digits"), ("nan", "not finite")],
)
async def test_structured_content_beyond_the_limits_is_a_failure(
    server: Server, kind: str, wrong: str
) -> None:
    """It would be shown to the policy, and be encoded again by everything behind."""
    async with opened(server.tiny(allow=["absurd"])) as box:
        with pytest.raises(ToolFailure, match=rf"structured content that 'absurd' .*{wrong}"):
            await ask(box, "absurd", kind=kind)


async def test_a_protocol_error_is_a_failure(server: Server) -> None:
    async with opened(server.tiny(allow=["broken"])) as box:
        with pytest.raises(ToolFailure, match="error -32603: it is broken") as told:
            await ask(box, "broken")
        assert len(str(told.value)) < 2100, "a server's words are not in the record at any length"


async def test_no_process_is_left(server: Server) -> None:
    async with opened(server.tiny()) as box:
        pid = int(str((await ask(box, "process")).content))
        assert runs(pid)
    assert not any(runs(int(line)) for line in server.lines)


async def test_a_server_that_never_answers_is_a_failure_and_is_ended(server: Server) -> None:
    source = server.tiny("deaf", connect_timeout_s=1.0)
    with pytest.raises(ToolFailure, match="no connection within 1 s"):
        await resolve_tools([source], timeout_s=DEADLINE_S)
    assert not any(runs(int(line)) for line in server.lines)


async def test_a_list_without_end_is_a_failure(server: Server) -> None:
    with pytest.raises(ToolFailure, match="more than 100 pages"):
        await resolve_tools([server.tiny("endless")], timeout_s=DEADLINE_S)


async def test_a_program_that_is_no_server_is_a_failure() -> None:
    source = mcp_tools(command=["true"], connect_timeout_s=DEADLINE_S)
    with pytest.raises(ToolFailure, match="MCP server true: it cannot be connected"):
        await resolve_tools([source], timeout_s=DEADLINE_S)
    with pytest.raises(ConfigError, match="no program 'no-such-program'"):
        await resolve_tools([mcp_tools(command=["no-such-program"])], timeout_s=DEADLINE_S)


def test_servers_of_a_killed_run_are_ended(server: Server) -> None:
    program = (
        "import asyncio, os, sys\n"
        "sys.path[:0] = sys.argv[2].split(':')\n"
        "from agentrl.tool import ToolContext\n"
        "from agentrl.authoring.toolset import ToolSet\n"
        "from agentrl_tools.mcp import mcp_tools\n"
        "async def main():\n"
        "    server = [sys.executable, '-I', '-S', sys.argv[1], 'good', sys.argv[3]]\n"
        "    source = mcp_tools(command=server, connect_timeout_s=60)\n"
        "    context = ToolContext(task_id='', sample=0, seed=0)\n"
        "    await ToolSet.open([source], context=context, timeout_s=60)\n"
        "    os.kill(os.getpid(), 9)\n"
        "asyncio.run(main())\n"
    )
    tiny, path = str(SUPPORT / "tiny_mcp_server.py"), ":".join(filter(None, sys.path))
    ran = subprocess.run(
        [sys.executable, "-c", program, tiny, path, str(server.log)],
        check=False,
        timeout=DEADLINE_S,
    )
    assert ran.returncode == -9
    assert len(server.lines) == 2  # one to ask for the tools, one for the trajectory
    deadline_s = time.monotonic() + DEADLINE_S
    while any(runs(int(line)) for line in server.lines):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


# -- trajectories ---------------------------------------------------------------------------------


async def test_a_trajectory_has_a_server_of_its_own(server: Server) -> None:
    source = server.tiny()
    async with run_scope(), opened(source) as one, opened(source) as other:
        assert (await ask(one, "add", amount=5)).content == "the total is 5"
        assert (await ask(other, "add", amount=1)).content == "the total is 1"
        assert len(server.lines) == 3  # the first was asked for the tools


async def test_a_run_asks_equal_sources_once_and_may_share_a_server(server: Server) -> None:
    async with run_scope():
        boxes = await asyncio.gather(
            *[
                ToolSet.open([server.tiny(scope="process")], context=CONTEXT, timeout_s=DEADLINE_S)
                for _ in range(3)
            ]
        )
        fork = await boxes[0].fork()
        for number, box in enumerate((*boxes, fork), start=1):
            assert (await ask(box, "add", amount=1)).content == f"the total is {number}"
            await box.close()
        assert len(server.lines) == 2
    assert not any(runs(int(line)) for line in server.lines)


async def test_a_shared_server_that_died_is_started_again(server: Server) -> None:
    async with run_scope(), opened(server.full(scope="process")) as box:
        with pytest.raises(ToolFailure):
            await ask(box, "crash")
        assert (await ask(box, "add", amount=1)).content == "the total is 1"


async def test_forks_are_refused_unless_replay_is_asked_for(server: Server) -> None:
    async with opened(server.tiny()) as box:
        with pytest.raises(ForkUnsupported, match="fork='replay'"):
            await box.fork()


async def test_a_replay_that_goes_otherwise_is_no_fork(server: Server) -> None:
    async with opened(server.tiny(fork="replay")) as box:
        await ask(box, "process")
        with pytest.raises(ForkUnsupported, match="answered call process"):
            await box.fork()
    assert not any(runs(int(line)) for line in server.lines)


async def test_mcp_tools_keep_the_promises_of_a_tool(server: Server) -> None:
    calls = [ToolCall("1", "add", {"amount": 2}), ToolCall("2", "add", {"amount": 3})]
    source = server.tiny(fork="replay", allow=["add"])
    promises = await check_tool(source, calls=calls, timeout_s=DEADLINE_S)
    assert {"forks do not interfere", "nothing is left after close"} <= {*promises}


@agentrl.tool
def add(a: int, b: int) -> int:
    """Return a plus b."""
    return a + b


async def test_an_environment_has_servers_in_its_config_and_their_names_do_not_clash(
    server: Server,
) -> None:
    def reward(task: agentrl.Task, messages: Any) -> float:
        return float(task.answer in messages[-1].text)

    given = server.tiny()
    made = {"source": "agentrl_tools.mcp:mcp_tools", "command": [*given.command], "name": "sums"}
    made |= {"allow": ["add"], "connect_timeout_s": DEADLINE_S}
    task = agentrl.Task(prompt="Sum up.", answer="7")
    env = ToolEnv(
        tasks=lambda split, seed: [task],
        reward=reward,
        tools=[made, add],
        tool_timeout_s=DEADLINE_S,
    )
    async with run_scope():
        observation, _ = await env.reset(options={"task": task})
        names = [tool["function"]["name"] for tool in observation.tools or ()]
        assert names == ["sums_add", "add"]
        step = await env.step(agentrl.call("sums_add", amount=7))
        assert step[0].messages == (
            Message("tool", "the total is 7", tool_call_id="call_0", name="sums_add"),
        )
        _, paid, *_ = await env.step(agentrl.say("7"))
        assert paid == 1.0
        await env.close()


async def test_schemas_are_the_servers_own(server: Server) -> None:
    tools = await resolve_tools([server.tiny(allow=[], schema_bytes=6000)], timeout_s=DEADLINE_S)
    schemas = {s["function"]["name"]: s["function"] for s in schemas_of(tools)}
    assert [*schemas] == ["add", "process", "broken", "long", "absurd"]
    assert schemas["add"]["parameters"] == {
        "type": "object",
        "properties": {"amount": {"type": "integer"}},
        "required": ["amount"],
    }
    assert schemas["process"] == {
        "name": "process",
        "description": "process",
        "parameters": {"type": "object", "properties": {}},
    }
    with pytest.raises(ConfigError, match="schema of 'long' has 5"):
        await resolve_tools([server.tiny(allow=["long"], schema_bytes=5000)], timeout_s=DEADLINE_S)
    with pytest.raises(ConfigError, match=r"no tool 'ad'; it has \['add'"):
        await resolve_tools([server.tiny(allow=["ad"])], timeout_s=DEADLINE_S)


# -- over HTTP ------------------------------------------------------------------------------------


class Listening:
    """The SDK's server, listening; it can be killed and started again."""

    def __init__(self, log: Path) -> None:
        self.port = free_port()
        self._log = log
        self.start()

    def start(self) -> None:
        command = [sys.executable, str(SUPPORT / "mcp_server.py"), str(self.port), str(self._log)]
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline_s = time.monotonic() + DEADLINE_S
        try:
            while not self._answers():
                assert time.monotonic() < deadline_s
                time.sleep(0.05)
        except BaseException:
            self.stop()
            raise

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port)).close()
        except OSError:
            return False
        return True

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture
def listening(server: Server) -> Iterator[Listening]:
    made = Listening(server.log)
    yield made
    made.stop()


async def test_over_http_all_is_the_same(server: Server, listening: Listening) -> None:
    source = mcp_tools(
        url=f"http://127.0.0.1:{listening.port}/mcp",
        scope="process",
        timeout_s=10.0,
        connect_timeout_s=DEADLINE_S,
    )
    async with run_scope(), opened(source) as box:
        assert (await ask(box, "add", amount=2)).content == "the total is 2"
        assert (await ask(box, "add", amount="x")).status == "error"
        assert isinstance((await ask(box, "picture")).content[1], Image)
        with pytest.raises(ToolFailure, match="more than timeout_s=10"):
            await ask(box, "hang")
        await server.noted("hang cancelled")
        with pytest.raises(ToolFailure):
            await ask(box, "crash")
        with pytest.raises(ToolFailure, match="cannot be connected"):
            await ask(box, "add", amount=1)
        listening.stop()
        listening.start()
        assert (await ask(box, "add", amount=1)).content == "the total is 1"
        assert os.getpid() != int(str((await ask(box, "process")).content))
