"""Whole weights at a server: each token of the version that drew it, and nothing half loaded.

The server is in this event loop and speaks the documented APIs of vLLM and of SGLang.
tests/system/with_vllm/test_server.py asks vLLM's own; SGLang's own has not been asked.

Mutants seen caught: no pause; no cache is emptied; requests in flight keep the old version, or the
new one for tokens of the old; spans are not read, or from the wrong place; an engine that goes on
after a load that failed; a proof that is not scored; a sleeper that is not woken before the load.
"""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentrl.engine.endpoint import EndpointReplicas
from agentrl.engine.endpoint.control import ServerControl
from agentrl.engine.endpoint.dialects import Api
from agentrl.engine.endpoint.transfer import DeviceTransfer, FolderTransfer, write_handles
from agentrl.engine.remote.shared_weights import SharedWeights
from agentrl.errors import ConfigError, EngineError, EngineLost, WeightsUnproven
from agentrl.policy import Sampling
from agentrl.policy import ScoreRequest as Asked
from tests.support.completions_server import PROMPT, check_said, expected, request
from tests.support.weights_server import NAME, WeightsServer, engine_of, proven, whole

APIS: list[Api] = ["completions", "generate", "sglang"]
AMOUNTS = {0: 0.0, 1: 0.4, 2: -0.7, 3: 0.9}


@pytest.fixture(params=APIS)
def server(request: pytest.FixtureRequest) -> WeightsServer:
    return WeightsServer(request.param)


async def test_tokens_scores_and_alternatives_are_those_of_the_weights(
    server: WeightsServer, tmp_path: Path
) -> None:
    async with engine_of(server, tmp_path, samplings=(Sampling(top_k=3),)) as engine:
        for version in (0, 1, 2):
            if version:
                await engine.load(proven(AMOUNTS[version]), version)
            done = await engine.generate(request(version, top_logprobs=2))
            assert {*done.versions} == {version}
            assert len(done.token_ids) == 12
            check_said(done, AMOUNTS)
            assert all(len(top) == 2 for top in done.top_logprobs)
            assert all(a[1] >= b[1] for a, b in done.top_logprobs)
            scores = await engine.score(Asked(id="s", prompt=PROMPT, token_ids=done.token_ids))
            assert scores.logprobs == pytest.approx(done.logprobs, abs=1e-6)
            assert scores.version == version
        stopped = await engine.generate(request(9, stop_token_ids=frozenset({done.token_ids[0]})))
        assert stopped.finish in ("stop", "length")
    assert not (tmp_path / "weights").exists()


async def test_requests_in_flight_are_asked_for_again(
    server: WeightsServer, tmp_path: Path
) -> None:
    async with engine_of(server, tmp_path) as engine:
        server.pace.clear()
        running = [asyncio.create_task(engine.generate(request(n))) for n in range(3)]
        for version in (1, 2):
            for _ in running:
                await server.started.acquire()
            await engine.load(whole(AMOUNTS[version]), version)
        server.pace.set()
        for done in await asyncio.gather(*running):
            assert done.versions == (0,) * 2 + (1,) * 2 + (2,) * 8
            check_said(done, AMOUNTS)
        emptied = {"/reset_prefix_cache?reset_running_requests=true", "/flush_cache"}
        assert sum(path in emptied for path in server.told) == 2


@pytest.mark.parametrize("api", ["generate"])
async def test_requests_are_kept_and_the_server_names_their_versions(
    api: Api, tmp_path: Path
) -> None:
    server = WeightsServer(api)
    async with engine_of(server, tmp_path, update="keep") as engine:
        await engine.load(whole(0.4), 1)
        server.pace.clear()
        running = [asyncio.create_task(engine.generate(request(n))) for n in range(3)]
        for _ in running:
            await server.started.acquire()
        hangups = server.hangups
        await engine.load(whole(-0.7), 2)
        server.pace.set()
        for done in await asyncio.gather(*running):
            assert done.versions == (1,) * 2 + (2,) * 10
            check_said(done, AMOUNTS)
        assert server.hangups - hangups == len(running), "each once, at its end"
        assert not any("reset_prefix_cache" in path for path in server.told)
        # The server's word counts, and not when a token came.
        server.version = "1"
        assert {*(await engine.generate(request(7))).versions} == {1}


async def test_weights_that_are_not_proven_are_sent_once_more(
    server: WeightsServer, tmp_path: Path
) -> None:
    async with engine_of(server, tmp_path) as engine:
        server.stale.append(True)
        await engine.load(proven(0.4), 1)
        assert server.stale == type(server.stale)()
        check_said(await engine.generate(request(1)), AMOUNTS)
        with pytest.raises(WeightsUnproven, match="version 2"):
            await engine.load(proven(0.9, says=-0.7), 2)
        with pytest.raises(WeightsUnproven):
            await engine.generate(request(2))


@pytest.mark.parametrize(
    ("path", "answer", "kind", "words"),
    [
        ("/pause", httpx.Response(404), ConfigError, "VLLM_SERVER_DEV_MODE=1"),
        ("/collective_rpc", httpx.Response(500, text="no room"), EngineError, "no room"),
        ("/update_weight_version", httpx.Response(500, text="gone"), EngineError, "gone"),
    ],
)
async def test_a_load_that_fails_ends_the_engine(
    path: str, answer: httpx.Response, kind: type[Exception], words: str, tmp_path: Path
) -> None:
    server = WeightsServer("completions")
    async with engine_of(server, tmp_path) as engine:
        server.pace.clear()
        running = asyncio.create_task(engine.generate(request(0)))
        await server.started.acquire()
        server.faults.append((path, answer))
        with pytest.raises(kind, match=words):
            await engine.load(whole(0.4), 1)
        with pytest.raises(EngineError):
            await running
        with pytest.raises(EngineError):
            await engine.generate(request(1))
        assert engine.version == 0


async def test_keys_of_old_weights_that_stay_fail_the_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentrl.engine.endpoint.control.RESET_WAIT_S", 0.0)
    server = WeightsServer("completions")
    held = httpx.Response(200, json={"success": False})
    async with engine_of(server, tmp_path) as engine:
        server.faults.append(("/reset_prefix_cache", held))
        await engine.load(whole(0.4), 1)
        server.faults.extend([("/reset_prefix_cache", held)] * 50)
        with pytest.raises(EngineError, match="kept cached keys"):
            await engine.load(whole(0.4), 2)


async def test_a_load_that_is_cancelled_ends_the_engine(tmp_path: Path) -> None:
    """Half of the weights may be there."""
    server = WeightsServer("completions")
    sending = asyncio.Event()

    class Hanging(FolderTransfer):
        async def send(
            self, control: ServerControl, weights: Path | SharedWeights, version: int
        ) -> None:
            sending.set()
            await asyncio.Event().wait()

    transfer = Hanging(tmp_path, linked=False)
    async with engine_of(server, tmp_path, transfer=transfer) as engine:
        loading = asyncio.ensure_future(engine.load(whole(0.4), 1))
        await sending.wait()
        loading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await loading
        with pytest.raises(EngineError, match="ended with"):
            await engine.generate(request(1))


async def test_sleep_and_wake(server: WeightsServer, tmp_path: Path) -> None:
    async with engine_of(server, tmp_path, sleep_level=2) as engine:
        await engine.sleep()
        await engine.sleep()
        waiting = asyncio.create_task(engine.generate(request(0)))
        await asyncio.sleep(0.01)
        await engine.load(whole(0.4), 1)
        assert {*(await waiting).versions} == {1}
        names = [path.partition("?")[0] for path in server.told]
        if server.api == "sglang":
            assert names[:3] == [
                "/pause_generation",
                "/release_memory_occupation",
                "/pause_generation",
            ]
            assert names[3:6] == [
                "/resume_memory_occupation",
                "/update_weights_from_disk",
                "/resume_memory_occupation",
            ]
        else:
            assert server.told[:2] == ["/pause?mode=abort", "/sleep?level=2"]
            assert server.told[3] == "/wake_up?tags=weights"
            assert names[4] == "/collective_rpc"
            assert server.told[6] == "/wake_up?tags=kv_cache"
    async with engine_of(WeightsServer("completions"), tmp_path) as awake:
        await awake.sleep()  # nothing was asked for


async def test_a_server_that_is_gone_fails_everything_at_once(
    server: WeightsServer, tmp_path: Path
) -> None:
    async with engine_of(server, tmp_path) as engine:
        server.pace.clear()
        running = [asyncio.create_task(engine.generate(request(n))) for n in range(2)]
        for _ in running:
            await server.started.acquire()
        engine.fail(EngineLost("it has ended"))
        for end in await asyncio.gather(*running, return_exceptions=True):
            assert isinstance(end, EngineLost)
        with pytest.raises(EngineLost, match="it has ended"):
            await engine.generate(request(5))


async def test_several_servers_are_each_given_a_copy(tmp_path: Path) -> None:
    servers = [WeightsServer("completions"), WeightsServer("completions")]
    engines = [engine_of(one, tmp_path / str(n)) for n, one in enumerate(servers)]
    async with EndpointReplicas(engines) as both:
        given = whole(0.4)
        prepared = await both.prepare(given)
        given[NAME].fill_(9.0)
        await both.roll(prepared, 1)
        assert [round(one.amount, 6) for one in servers] == [0.4, 0.4]
        assert both.version == 1


def test_kept_requests_need_versions(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"api: generate"):
        engine_of(WeightsServer("completions"), tmp_path, update="keep")


class Trainer:
    """Stands in for the trainer's half of a transfer: the calls of vLLM's, in its order."""

    def __init__(self, client: Any, source: Any, *, fails: bool = False) -> None:
        self.client, self.source, self.fails = client, source, fails
        self.sent: list[list[str]] = []
        client.init_weight_transfer_engine({"rank_offset": 1})

    def send_weights(self) -> None:
        self.client.start_weight_update()
        if self.fails:
            raise RuntimeError("a rank is gone")
        self.client.update_weights({"names": [name for name, _ in self.source]})
        self.sent.append([name for name, _ in self.source])
        self.client.finish_weight_update()

    def shutdown(self) -> None:
        self.source.weights = {}


async def test_tensors_go_from_device_to_device_by_the_transfer_api(tmp_path: Path) -> None:
    """The order of the calls; no tensor has been sent between GPUs."""
    server, made = WeightsServer("completions"), list[Trainer]()

    def build(client: Any, source: Any) -> Trainer:
        made.append(Trainer(client, source, fails=len(made) == 1))
        return made[-1]

    fallback = FolderTransfer(tmp_path / "weights", linked=False)
    transfer = DeviceTransfer("nccl", fallback, build_trainer=build)
    async with engine_of(server, tmp_path, transfer=transfer) as engine:
        await engine.load(whole(0.4), 1)
        await engine.load(whole(0.4), 2)
        assert len(made) == 1, "a group is kept"
        assert made[0].sent == [[NAME], [NAME]]
        assert [path for path in server.told if "weight" in path] == [
            "/init_weight_transfer_engine",
            *["/start_weight_update", "/update_weights", "/finish_weight_update"] * 2,
        ]
        assert server.version == "2"
        # The copy in memory is what comes later is given: the trainer's tensors have changed.
        from agentrl.engine.endpoint.transfer import OutgoingWeights

        late = OutgoingWeights(whole(0.9))
        late.live = None
        await engine.load(late, 3)
        assert server.amount == pytest.approx(0.9)
        check_said(await engine.generate(request(3)), AMOUNTS)


async def test_a_transfer_that_fails_ends_the_engine(tmp_path: Path) -> None:
    def build(client: Any, source: Any) -> Trainer:
        return Trainer(client, source, fails=True)

    fallback = FolderTransfer(tmp_path / "weights", linked=False)
    transfer = DeviceTransfer("ipc", fallback, build_trainer=build)
    async with engine_of(WeightsServer("completions"), tmp_path, transfer=transfer) as engine:
        with pytest.raises(RuntimeError, match="a rank is gone"):
            await engine.load(whole(0.4), 1)
        with pytest.raises(EngineError, match="a rank is gone"):
            await engine.generate(request(1))


def test_handles_are_pickled_for_json() -> None:
    import base64
    import pickle

    info = {"names": ["a"], "ipc_handles": {"GPU-1": (1, b"x")}}
    sent = write_handles(info)
    assert pickle.loads(base64.b64decode(sent.pop("ipc_handles_pickled"))) == {"GPU-1": (1, b"x")}
    assert sent == {"names": ["a"]}
    assert write_handles({"names": []}) == {"names": []}


def test_expected_is_what_the_table_says() -> None:
    assert expected((1,), (2,), (0.0,)) != expected((1,), (2,), (0.4,))
