"""Engines that others serve: found, lost, found again; a run over two of them, in turn."""

import asyncio
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl.config.load import load_config
from agentrl.engine.local import LocalEngine
from agentrl.engine.remote import AddressEngine, EngineReplicas, EngineServer
from agentrl.engine.remote import address as address_module
from agentrl.engine.remote import client as client_module
from agentrl.engine.remote.address import read_key
from agentrl.engine.remote.server import listening_place
from agentrl.engine.scripted import ScriptedEngine
from agentrl.errors import ConfigError, EngineError
from agentrl.metrics.writer import read_metrics
from agentrl.policy import GenerateRequest, PolicyEngine, ScoreRequest
from agentrl.run.train import train
from agentrl.testing.engine import check_engine
from tests.support.engine_models import VOCABULARY, shared, tiny
from tests.support.scripted_scorer import ScriptedScorer
from tests.support.tiny_run import config_file

KEY = b"a key that nobody guesses"
CONTEXT_TOKENS = 512
DEADLINE_S = 120.0


@pytest.fixture(autouse=True)
def quick_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address_module, "FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(address_module, "MOST_WAIT_S", 0.05)


@asynccontextmanager
async def served(engine: PolicyEngine, port: int = 0) -> AsyncGenerator[int]:
    async with EngineServer(engine, key=KEY) as server:
        yield await server.listen("127.0.0.1", port)


def at(port: int, **changes: Any) -> AddressEngine:
    return AddressEngine(f"127.0.0.1:{port}", key=KEY, **{"start_s": DEADLINE_S, **changes})


def request(id: str = "a/0/0", tokens: int = 4) -> GenerateRequest:
    return GenerateRequest(id=id, prompt=(1, 2, 3), max_new_tokens=tokens)


def scripted(**changes: Any) -> ScriptedEngine:
    return ScriptedEngine(lambda request: (5,) * 100, **changes)


async def test_the_contract_holds_at_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "PIECE_BYTES", 100_000)  # weights come in several
    local = LocalEngine(shared("qwen3"), slots=4, context_tokens=CONTEXT_TOKENS)
    async with asyncio.timeout(DEADLINE_S), served(local) as port, at(port) as engine:
        weights = tiny("qwen3", 1).state_dict()
        await engine.load(weights, 3)
        async with LocalEngine(
            tiny("qwen3", 1), slots=4, context_tokens=CONTEXT_TOKENS, version=3
        ) as other:
            assert await engine.generate(request()) == await other.generate(request())
        await check_engine(
            engine, vocab_size=VOCABULARY, context_tokens=CONTEXT_TOKENS, weights=weights
        )
    await local.close()


async def test_one_that_is_away_for_a_day_is_still_only_away() -> None:
    engine = at(1, patience_s=0.0)
    engine._tries, engine._was_here = 2_000, True  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(EngineError, match="no engine answers"):
        await engine.generate(request())
    await engine.close()


async def test_pieces_out_of_order_are_refused() -> None:
    async with asyncio.timeout(DEADLINE_S), served(scripted()) as port:
        remote = await client_module.connect(f"127.0.0.1:{port}", key=KEY)
        for head in ({"at": 5, "of": 9}, {"at": 0, "of": 1}):
            frame = client_module.EngineFrame({"call": "piece", **head}, b"123")
            with pytest.raises(ValueError, match="in order, from the first"):
                await remote._ask(99, frame)  # pyright: ignore[reportPrivateUsage]
        await remote.close()


async def test_one_that_comes_back_has_what_it_missed() -> None:
    weights = {"w": torch.zeros(2)}
    async with asyncio.timeout(DEADLINE_S):
        first, second = scripted(token_s=0.01), scripted()
        async with served(first) as port:
            engine = at(port)
            await engine.load(weights, 1)
            assert first.loads[0][1] == 1
            running = asyncio.create_task(engine.generate(request(tokens=100)))
            while not first.requests:  # noqa: ASYNC110 - there is nothing else to wait on
                await asyncio.sleep(0)
        with pytest.raises(EngineError, match="is gone"):
            await running
        # It is away: what it is told meanwhile is not lost, and nobody waits for it.
        await engine.pause()
        loading = asyncio.create_task(engine.load(weights, 2))
        asking = asyncio.create_task(engine.generate(request()))
        async with served(second, port):
            await loading
            assert [version for _, version in second.loads][-1] == 2
            done, _ = await asyncio.wait([asking], timeout=0.1)
            assert not done
            await engine.resume()
            assert set((await asking).versions) == {2}
            await engine.close()


async def test_with_others_there_nobody_waits_for_one_that_is_away() -> None:
    weights = {"w": torch.zeros(2)}
    async with asyncio.timeout(DEADLINE_S):
        stays, leaves = scripted(), scripted()
        async with served(stays) as port:
            async with served(leaves) as other:
                both = EngineReplicas([at(port), at(other, patience_s=0.0)])
                await both.__aenter__()
            await both.load(weights, 1)  # one is away
            assert both.version == 1
            for number in range(6):  # what went to it fails, and whoever tries again is served
                try:
                    done = await both.generate(request(f"{number}/0/0"))
                except EngineError:
                    done = await both.generate(request(f"{number}/0/0"))
                assert set(done.versions) == {1}
            back = scripted()
            async with served(back, other):
                await both.roll(await both.prepare(weights), 2)
                while not back.loads:  # its next try is some hundredths of a second away
                    await asyncio.sleep(0.01)
                    await both.roll(await both.prepare(weights), 2)
                assert back.version == stays.version == both.version == 2
            await both.close()


async def test_scores_are_asked_where_a_trajectory_is_at_home() -> None:
    def scorer() -> ScriptedScorer:
        return ScriptedScorer(lambda request: (1,) * 9, lambda context: [-0.7, -0.7])

    engines = [scorer(), scorer()]
    async with (
        asyncio.timeout(DEADLINE_S),
        served(engines[0]) as one,
        served(engines[1]) as other,
        EngineReplicas([at(one), at(other)]) as both,
    ):
        for session in "abc":
            await both.generate(request(f"{session}/0/0"))
            asked = ScoreRequest(id=f"{session}/1/0", prompt=(1, 2, 3), token_ids=(1,))
            await both.score(asked)
    homes = [{r.id[0] for r in engine.requests} for engine in engines]
    assert homes == [{r.id[0] for r in engine.scored} for engine in engines]


async def test_who_has_another_key_is_not_tried_again() -> None:
    async with asyncio.timeout(DEADLINE_S), served(scripted()) as port:
        with pytest.raises(ConfigError, match="the key does not match"):
            await AddressEngine(f"127.0.0.1:{port}", key=b"another").__aenter__()


async def test_one_that_stays_away_is_named(unused_tcp_port: int) -> None:
    engine = at(unused_tcp_port, start_s=0.2)
    with pytest.raises(EngineError, match=f"{unused_tcp_port}"):
        await engine.__aenter__()


def test_a_key_is_long_and_there(tmp_path: Path) -> None:
    file = tmp_path / "key"
    for given, says in ((None, "not set"), (file, "cannot be read")):
        with pytest.raises(ConfigError, match=says):
            read_key(given)
    file.write_text("short\n")
    with pytest.raises(ConfigError, match="holds 5 bytes"):
        read_key(file)
    file.write_text("long enough for anybody\n")
    assert read_key(file) == b"long enough for anybody"


@pytest.mark.parametrize("text", ["7440", ":7440", "host:", "host:x", "host:70000"])
def test_a_place_to_listen_is_a_host_and_a_port(text: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(repr(text))):
        listening_place(text)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"engine.addresses": ["a:1"], "engine.processes": 2}, r"set only one of the two"),
        ({"engine.addresses": ["a:1"]}, r"engine\.key_file is not"),
        ({"engine.rolling": True, "rollout.mode": "async"}, r"there is only 1 engine"),
        ({"engine.rolling": True, "engine.processes": 2}, r"rollout\.mode: sync"),
    ],
)
def test_what_does_not_go_together_is_refused(
    tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        load_config(config_file(tmp_path), changes)


# --- a run ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_over_two_engines_that_a_command_serves(tmp_path: Path, root: Path) -> None:
    """Two processes of `agentrl engine serve`; the run's weights go round one after the other."""
    config = config_file(tmp_path)
    made = train(config, {"run.steps": 1, "run.name": "made"})
    key = tmp_path / "key"
    key.write_text("a key that nobody guesses")
    shared_keys = {"engine.key_file": str(key), "policy.path": str(made.folder / "policy")}
    text = [f"{name}={value}" for name, value in shared_keys.items()]
    command = [sys.executable, "-m", "agentrl.cli", "engine", "serve", str(config), *text]
    command += ["policy.make=null", "warmstart=null", "--listen", "127.0.0.1:0"]
    servers = [
        subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    try:
        places = [place_of(server) for server in servers]
        result = train(
            config,
            {
                **shared_keys,
                "policy.make": None,
                "warmstart": None,
                "engine.addresses": places,
                "engine.rolling": True,
                "rollout.mode": "async",
                "rollout.max_staleness": 1,
                "run.name": "rolled",
            },
        )
    finally:
        for server in servers:
            server.send_signal(signal.SIGTERM)
        codes = [server.wait(60) for server in servers]
        for server in servers:
            assert server.stdout is not None
            server.stdout.close()
    assert codes == [0, 0]
    lines = read_metrics(result.folder)
    assert len(lines) == 4
    for line in lines:
        assert line.get("failure_rate/engine", 0) == 0
        if line["age/max"] == 0:
            assert 0 < line["engine_gap/max"] < 1e-3
    assert any(line["gate/roll_s"] > 0 for line in lines)


def place_of(server: "subprocess.Popen[str]") -> str:
    assert server.stdout is not None
    said = server.stdout.readline()
    found = re.search(r"listens on (\S+);", said)
    assert found, said
    host, port = found[1].split(":")
    with socket.create_connection((host, int(port)), timeout=10):
        return found[1]
