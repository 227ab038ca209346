"""Where a gateway listens, what programs are told of it, and who reaches it.

Mutants seen caught: a wildcard told to programs; the warning left out; an idle connection kept; one
ended whose request waits for its answer; connections not counted.
"""

import asyncio
import contextlib
import json
import logging
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import agentrl
from agentrl.config.load import load_config
from agentrl.errors import ConfigError, EnvError
from agentrl.gateway import GatewayServer
from agentrl.gateway import server as gateway_server
from agentrl.gateway.listening import ListenAddress, parse_listen_address
from agentrl.run.preflight import check_env
from agentrl.task import Split, Task
from agentrl_envs.blackbox import BlackBoxEnv
from agentrl_sandbox.recipe import RECIPES
from tests.support.watchdog import watched

SOON_S = 120.0
QUESTION = Task(prompt="What is 2 * 21?", answer="42", id="q")
LISTENS: list[tuple[str, str | None, tuple[str, int], str]] = [
    ("127.0.0.1", None, ("127.0.0.1", 0), "http://127.0.0.1:4321"),
    ("localhost", None, ("127.0.0.1", 0), "http://127.0.0.1:4321"),
    ("localhost:4321", None, ("127.0.0.1", 4321), "http://127.0.0.1:4321"),
    ("::1", None, ("::1", 0), "http://[::1]:4321"),
    ("[::1]:4321", None, ("::1", 4321), "http://[::1]:4321"),
    ("10.0.0.5", None, ("10.0.0.5", 0), "http://10.0.0.5:4321"),
    ("0.0.0.0", "http://trainer", ("0.0.0.0", 0), "http://trainer:4321"),
    ("0.0.0.0", "http://trainer/", ("0.0.0.0", 0), "http://trainer:4321"),
    ("::", "http://[fd00::2]", ("::", 0), "http://[fd00::2]:4321"),
    ("0.0.0.0:4321", "http://trainer:80", ("0.0.0.0", 4321), "http://trainer:80"),
    ("127.0.0.1:4321", "https://proxy.example", ("127.0.0.1", 4321), "https://proxy.example"),
    ("127.0.0.1:4321", "http://10.0.0.5:9000", ("127.0.0.1", 4321), "http://10.0.0.5:9000"),
    ("127.0.0.1", "http://host.docker.internal", ("127.0.0.1", 0), "http://host.docker.internal:4321"),
]  # fmt: skip
REFUSED: list[tuple[str, str | None, str]] = [
    ("0.0.0.0", None, "all addresses of this machine.*set advertise"),
    ("::", None, "all addresses.*set advertise"),
    ("trainer", None, "'trainer'.*IP address"),
    ("", None, "IP address"),
    ("127.0.0.1:http", None, "IP address"),
    ("127.0.0.1:65536", None, "IP address"),
    ("[::1", None, "IP address"),
    ("fe80::1%eth0", None, "IP address"),
    ("0.0.0.0", "trainer", "'trainer'.*http://NAME-OR-IP"),
    ("0.0.0.0", "ftp://trainer", "http://NAME-OR-IP"),
    ("0.0.0.0", "http://trainer/v1", "without a path"),
    ("0.0.0.0", "http://me:secret@trainer", "http://NAME-OR-IP"),
    ("0.0.0.0", "http://trainer:99999", "http://NAME-OR-IP"),
    ("0.0.0.0", "http://trainer x", "http://NAME-OR-IP"),
    ("0.0.0.0", "http://0.0.0.0", "nobody can connect to"),
    ("0.0.0.0", "http://trainer:80", r"forward.*host: 0\.0\.0\.0:PORT"),
    ("0.0.0.0", "https://trainer", "forward.*host"),
    ("127.0.0.1", "http://10.0.0.5", r"listens on 127\.0\.0\.1.*set host: 0\.0\.0\.0"),
]


@pytest.mark.parametrize(("host", "advertise", "place", "url"), LISTENS)
def test_programs_are_told_an_address_that_leads_to_the_gateway(
    host: str, advertise: str | None, place: tuple[str, int], url: str
) -> None:
    address = parse_listen_address(host, advertise)
    assert (address.host, address.port) == place
    assert address.build_url(4321) == url
    told = address.explain_reach(4321)
    is_safe = place[0] in ("127.0.0.1", "::1")
    assert (told == "") == is_safe
    assert is_safe or ("port 4321" in told and "without the key" in told)
    assert ("any address of this machine" in told) == (place[0] in ("0.0.0.0", "::"))


@pytest.mark.parametrize(("host", "advertise", "words"), REFUSED)
def test_what_programs_could_not_reach_is_refused_with_the_way_out(
    host: str, advertise: str | None, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_listen_address(host, advertise)


@given(
    st.text("0123456789.:[]%afx", max_size=20), st.none() | st.text("http:/.[]@?# a1", max_size=20)
)
def test_whatever_is_said_is_an_address_or_a_config_error(host: str, advertise: str | None) -> None:
    try:
        address = parse_listen_address(host, advertise)
    except ConfigError:
        return
    assert address.build_url(4321).startswith(("http://", "https://"))


CONFIG = """
run: {{name: told, folder: {folder}}}
env:
  id: blackbox/Program-v0
  kwargs: {{tasks: "m:t", score: "m:s", command: ["{python}"], {keys}}}
policy: {{make: {{hidden_size: 32, layers: 2, heads: 2, kv_heads: 1, head_dim: 16}}}}
"""


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ("host: 0.0.0.0", "set advertise.*env.kwargs"),
        ("host: 203.0.113.7", r"203\.0\.113\.7, where this machine cannot listen"),
        ("host: '127.0.0.1:{taken}'", "in use.*no port or one that is free"),
        ("host: 0.0.0.0, advertise: trainer", "http://NAME-OR-IP"),
        ("host: 0.0.0.0, advertise: 'http://trainer'", ""),
    ],
)
def test_a_wrong_address_is_told_before_a_run_begins(tmp_path: Path, keys: str, words: str) -> None:
    path = tmp_path / "told.yaml"
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        keys = keys.format(taken=other.getsockname()[1])
        path.write_text(CONFIG.format(folder=tmp_path, python=sys.executable, keys=keys))
        if not words:
            check_env(load_config(path))
            return
        with pytest.raises(ConfigError, match=words):
            check_env(load_config(path))


# -- reached --------------------------------------------------------------------------------------

ASK = """
import json, os, urllib.request
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
body = {"messages": [{"role": "user", "content": os.environ["OPENAI_BASE_URL"]}]}
headers = {"content-type": "application/json"}
request = urllib.request.Request(url, json.dumps(body).encode(), headers)
print(json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"])
"""


def questions(split: Split, seed: int) -> list[Task]:
    return [QUESTION]


def is_right(task: Task, result: str) -> float:
    return float(result.strip() == task.answer)


def own_address() -> str:
    """Return an address of this machine that is not the loopback's; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect(("203.0.113.1", 9))
        except OSError:
            pytest.skip("this machine has no address but its loopback's")
        return str(asking.getsockname()[0])


async def play(command: list[str], *, host: str, advertise: str) -> str:
    """Return the URL that a program was told, which asks once and is answered right."""
    env = BlackBoxEnv(
        tasks=questions, score=is_right, command=command, host=host, advertise=advertise
    )
    async with asyncio.timeout(SOON_S):
        try:
            shown, _ = await env.reset(seed=0, options={"task": QUESTION})
            _, reward, terminated, _, _ = await env.step(agentrl.say("42"))
        finally:
            await env.close()
    assert (reward, terminated) == (1.0, True)
    return shown.messages[0].text


@pytest.mark.docker
async def test_a_program_in_a_container_reaches_the_gateway_by_its_address(
    caplog: pytest.LogCaptureFixture,
) -> None:
    address = own_address()
    image = RECIPES["sandbox"].tag
    passed = ["--env", "OPENAI_BASE_URL", "--env", "OPENAI_API_KEY"]
    command = ["docker", "run", "--rm", "--network", "host", *passed, image, "python3", "-c", ASK]
    with caplog.at_level(logging.WARNING, gateway_server.__name__):
        told = await play(command, host="0.0.0.0", advertise=f"http://{address}")
    assert told.startswith(f"http://{address}:")
    (record,) = caplog.records
    assert "any address of this machine" in record.message


@pytest.fixture
def namespace() -> Iterator[tuple[str, str]]:
    """Return a network namespace's name, and this machine's address in it."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("a network namespace with a wire to this one needs ip, and root")
    name = f"agentrl{os.getpid()}"
    near, far = f"agn{os.getpid()}", f"agf{os.getpid()}"
    host, guest = "198.18.77.1", "198.18.77.2"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        pytest.skip(f"no network namespace can be made: {made.stderr.strip()}")
    try:
        for words in (
            ["link", "add", near, "type", "veth", "peer", "name", far, "netns", name],
            ["address", "add", f"{host}/30", "dev", near],
            ["link", "set", near, "up"],
            ["-n", name, "address", "add", f"{guest}/30", "dev", far],
            ["-n", name, "link", "set", far, "up"],
        ):
            wired = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
            if wired.returncode != 0:
                pytest.skip(f"no wire between namespaces can be made: {wired.stderr.strip()}")
        yield name, host
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


async def test_a_program_on_another_network_reaches_only_what_listens_there(
    namespace: tuple[str, str],
) -> None:
    name, host = namespace
    command = ["ip", "netns", "exec", name, sys.executable, "-c", ASK]
    told = await play(command, host=host, advertise=f"http://{host}")
    assert told.startswith(f"http://{host}:")
    with pytest.raises(EnvError, match=r"refused|unreachable"):
        await play(command, host="127.0.0.1", advertise="http://localhost")


# -- by whom --------------------------------------------------------------------------------------


@pytest.fixture
async def gateway() -> AsyncIterator[GatewayServer]:
    opened = await GatewayServer.open(ListenAddress("0.0.0.0", advertise="http://127.0.0.1"))
    yield opened
    await opened.close()


async def test_beyond_the_loopback_a_key_is_demanded_and_no_page_may_ask(
    gateway: GatewayServer,
) -> None:
    place = gateway.place()
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}]}
    strange = {"Host": "evil.example", "Origin": "http://evil.example"}
    async with httpx.AsyncClient(base_url=gateway.url, timeout=SOON_S) as client:
        for path in ("/v1/chat/completions", f"/episode/{'0' * 32}/v1/messages", "/v1/responses"):
            answer = await client.post(path, json=body, headers=strange)
            assert answer.status_code == 401
        assert (await client.get("/v1/models")).status_code == 401
        # A page of another site may not read an answer, whatever it knows.
        asked = {"Access-Control-Request-Method": "POST", **strange}
        preflight = await client.options(f"{place.url}/v1/chat/completions", headers=asked)
        assert preflight.status_code == 405
        refused = await client.post(f"{place.url}/v1/responses", json={}, headers=strange)
        for answer in (preflight, refused):
            assert not [name for name in answer.headers if name.startswith("access-control")]
        assert place.key not in json.dumps(refused.json())


@watched
async def test_a_connection_without_a_request_ends(
    gateway: GatewayServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_server, "HEAD_S", 0.05)
    port = int(gateway.url.rpartition(":")[2])
    for words in (b"", b"POST /v1/responses HTTP/1.1\r\nHost: x\r\n"):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(words)
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), SOON_S) == b""
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)
    # One whose request is answered late is none of these.
    place = gateway.place()
    async with httpx.AsyncClient(base_url=place.url, timeout=SOON_S) as client:
        body = {"messages": [{"role": "user", "content": "a"}]}
        asking = asyncio.ensure_future(client.post("/v1/chat/completions", json=body))
        request = await asyncio.wait_for(place.desk.next(), SOON_S)
        await asyncio.sleep(0.3)
        request.answer(agentrl.say("late"))
        assert (await asking).json()["choices"][0]["message"]["content"] == "late"


async def test_connections_are_no_more_than_half_of_the_files(
    gateway: GatewayServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_server, "count_most_connections", lambda: 2)
    port = int(gateway.url.rpartition(":")[2])
    held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.suppress(ConnectionResetError):
        assert await asyncio.wait_for(reader.read(), SOON_S) == b""
    for _, one in (*held, (reader, writer)):
        one.close()
    monkeypatch.undo()
    async with httpx.AsyncClient(base_url=gateway.url, timeout=SOON_S) as client:
        assert (await client.get("/v1/models")).status_code == 401
