"""Engines on the other side of a socket: the contract, bit for bit, and whatever can break.

Mutants seen caught: an abort that is not passed on; requests of a client that is gone go on; any
proof of the key will do; a client that goes ends everybody's pause; a pause that ended counts on.
"""

import asyncio
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.engine.local import LocalEngine
from agentrl.engine.remote import EngineServer, RemoteEngine, connect
from agentrl.engine.remote.frames import (
    PROTOCOL,
    EngineFrame,
    FrameStreamClosed,
    read_frame,
    read_greeting,
    write_frame,
)
from agentrl.engine.remote.wire import (
    FrameReader,
    completion_frame,
    read_completion,
    read_request,
    read_score,
    read_scores,
    request_frame,
    score_frame,
    scores_frame,
)
from agentrl.engine.scripted import ScriptedEngine
from agentrl.errors import ConfigError, EngineError, EngineLost
from agentrl.message import Image, ImageSpan
from agentrl.policy import (
    Completion,
    GenerateRequest,
    PolicyEngine,
    Sampling,
    ScoreRequest,
    Scores,
    ScoringEngine,
)
from agentrl.testing.engine import check_engine
from tests.support.engine_models import VOCABULARY, prompt_of, requests, shared, tiny
from tests.support.watchdog import watched

CONTEXT_TOKENS = 256
KEY = b"a secret"
DEADLINE_S = 60.0


@pytest.fixture
async def local() -> AsyncIterator[LocalEngine]:
    async with LocalEngine(shared("qwen3"), slots=4, context_tokens=CONTEXT_TOKENS) as engine:
        yield engine


@asynccontextmanager
async def served(engine: PolicyEngine, **settings: Any) -> AsyncGenerator[RemoteEngine]:
    """Serve an engine over TCP, and be its only client."""
    async with EngineServer(engine, key=KEY, **settings) as server:
        port = await server.listen("127.0.0.1", 0)
        async with await connect(f"127.0.0.1:{port}", key=KEY, **settings) as remote:
            yield remote


def long(number: int = 0, **changes: Any) -> GenerateRequest:
    given: dict[str, Any] = {
        "id": f"long-{number}",
        "prompt": prompt_of(20, number),
        "max_new_tokens": 200,
        "seed": number,
    }
    return GenerateRequest(**{**given, **changes})


@asynccontextmanager
async def pretender(
    play: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncGenerator[str]:
    """Be a server that does as `play` says and then hangs; yields its address."""
    held: list[asyncio.StreamWriter] = []

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.append(writer)
        await play(reader, writer)

    server = await asyncio.start_server(hold, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        for writer in held:
            writer.close()
        server.close()
        await server.wait_closed()


async def until(done: Callable[[], bool]) -> None:
    """Let the loop turn until something is so."""
    async with asyncio.timeout(DEADLINE_S):
        while not done():  # noqa: ASYNC110 - there is nothing else to wait on
            await asyncio.sleep(0)


async def test_the_contract_holds_over_a_socket(local: LocalEngine) -> None:
    async with EngineServer(local, key=KEY) as server:
        engine = await connect(f"127.0.0.1:{await server.listen('127.0.0.1', 0)}", key=KEY)
        assert isinstance(engine, PolicyEngine)
        assert isinstance(engine, ScoringEngine)
        proven = await check_engine(
            engine,
            vocab_size=VOCABULARY,
            context_tokens=CONTEXT_TOKENS,
            weights=tiny("qwen3", 1).state_dict(),
        )
    assert "what was sampled is scored as it was sampled" in proven
    assert len(proven) > 25


async def test_what_arrives_is_what_was_sampled(local: LocalEngine) -> None:
    asked = requests(6, top_logprobs=3, entropies=True, sampling=Sampling(temperature=0.8))
    asked = [replace(one, max_new_tokens=min(one.max_new_tokens, 30)) for one in asked]
    async with served(local) as remote:
        theirs = await asyncio.gather(*map(remote.generate, asked))
    ours = await asyncio.gather(*map(local.generate, asked))
    # What was cached depends on who came before.
    plain = [replace(one, prompt_cached_tokens=0) for one in theirs]
    assert plain == [replace(one, prompt_cached_tokens=0) for one in ours]


@pytest.mark.parametrize("way", ["sent", "file", "folder"])
async def test_an_update_in_mid_request_stamps_the_tokens_after_it(
    local: LocalEngine, tmp_path: Path, way: str
) -> None:
    other = tiny("qwen3", 1)
    other.save_pretrained(tmp_path)
    weights = {
        "sent": other.state_dict(),
        "file": tmp_path / "model.safetensors",
        "folder": str(tmp_path),
    }[way]
    async with served(local) as remote:
        running = asyncio.create_task(remote.generate(long()))
        await until(lambda: local.statistics().sampled_tokens >= 5)
        await remote.load(weights, 7)
        assert remote.version == local.version == 7
        done = await running
        assert set(done.versions) == {0, 7}
        assert list(done.versions) == sorted(done.versions)
        fresh = await remote.generate(long(1, max_new_tokens=8))
    async with LocalEngine(other, slots=1, context_tokens=CONTEXT_TOKENS) as plain:
        assert (await plain.generate(long(1, max_new_tokens=8))).logprobs == fresh.logprobs


async def test_refused_weights_change_nothing(local: LocalEngine, tmp_path: Path) -> None:
    async with served(local) as remote:
        with pytest.raises(ValueError, match=r"the weights have no .*state dict of the model"):
            await remote.load({"strange": tiny("qwen3").lm_head.weight}, 3)
        with pytest.raises(ValueError, match="safetensors"):
            await remote.load(tmp_path / "nothing", 3)
        assert remote.version == 0
        assert len((await remote.generate(long(max_new_tokens=3))).token_ids) == 3


async def test_what_cannot_be_served_says_why(local: LocalEngine) -> None:
    async with served(local) as remote:
        with pytest.raises(ValueError, match=f"context_tokens={CONTEXT_TOKENS}"):
            await remote.generate(long(prompt=(1,) * CONTEXT_TOKENS))
        running = asyncio.create_task(remote.generate(long()))
        await until(lambda: local.statistics().running == 1)
        with pytest.raises(ValueError, match="'long-0' is already in flight"):
            await remote.generate(long())
        await remote.abort("long-0")
        assert (await running).finish == "aborted"


async def test_an_engine_that_cannot_score_says_so() -> None:
    async with served(ScriptedEngine({(1,): (2,)})) as remote:
        with pytest.raises(ConfigError, match="ScriptedEngine cannot score"):
            await remote.score(ScoreRequest(id="s", prompt=(1,), token_ids=(2,)))


async def test_two_clients_may_use_one_name(local: LocalEngine) -> None:
    async with EngineServer(local, key=KEY) as server:
        address = f"127.0.0.1:{await server.listen('127.0.0.1', 0)}"
        async with await connect(address, key=KEY) as one, await connect(address, key=KEY) as two:
            first = asyncio.create_task(one.generate(long()))
            second = asyncio.create_task(two.generate(long()))
            await until(lambda: local.statistics().running == 2)
            await one.abort("long-0")
            assert (await first).finish == "aborted"
            assert len((await second).token_ids) == 200


async def test_a_newcomer_is_told_the_version() -> None:
    async with served(ScriptedEngine({(1,): (2,)}, version=4)) as remote:
        assert remote.version == 4


async def test_who_has_another_key_is_turned_away(local: LocalEngine) -> None:
    async with EngineServer(local, key=KEY) as server:
        address = f"127.0.0.1:{await server.listen('127.0.0.1', 0)}"
        with pytest.raises(ConfigError, match="key does not match"):
            await connect(address, key=b"guess")


@pytest.mark.parametrize("address", ["7000", "host:", ":7000", "host:port"])
async def test_an_address_is_host_and_port(address: str) -> None:
    with pytest.raises(ConfigError, match="host:port"):
        await connect(address, key=KEY)


async def test_nobody_there_is_an_engine_failure(unused_tcp_port: int) -> None:
    with pytest.raises(EngineError, match=f"{unused_tcp_port}.*check that it is started"):
        await connect(f"127.0.0.1:{unused_tcp_port}", key=KEY)


@pytest.fixture
async def unused_tcp_port() -> int:
    server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    return port


async def test_noise_on_the_port_harms_nobody(local: LocalEngine) -> None:
    async with EngineServer(local, key=KEY) as server:
        port = await server.listen("127.0.0.1", 0)
        async with await connect(f"127.0.0.1:{port}", key=KEY) as engine:
            for noise in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, b""):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(noise)
                writer.write_eof()
                async with asyncio.timeout(DEADLINE_S):
                    greeting = await reader.read()
                assert len(greeting) < 500
                writer.close()
            assert len((await engine.generate(long(max_new_tokens=3))).token_ids) == 3


@pytest.mark.parametrize(
    "call", [{"call": "format_disk", "n": 1}, {"call": "generate"}, {"call": "ping", "n": "x"}]
)
async def test_a_client_that_speaks_wrongly_is_let_go(
    local: LocalEngine, call: dict[str, Any]
) -> None:
    async with EngineServer(local) as server:
        port = await server.listen("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        engine = await RemoteEngine.over(reader, writer, start_s=DEADLINE_S)
        write_frame(writer, EngineFrame(call))
        await until(lambda: not engine.is_open)
        with pytest.raises(EngineError):
            await engine.generate(long(max_new_tokens=3))
        await engine.close()
        async with await connect(f"127.0.0.1:{port}", key=server.key) as other:
            assert len((await other.generate(long(max_new_tokens=3))).token_ids) == 3


async def test_a_cancelled_caller_frees_its_request_there(local: LocalEngine) -> None:
    async with served(local) as remote:
        running = asyncio.create_task(remote.generate(long()))
        await until(lambda: local.statistics().running == 1)
        running.cancel()
        await asyncio.wait([running])
        await until(lambda: local.statistics().running == 0)
        assert local.statistics().sampled_tokens < 200


async def test_a_client_that_is_gone_leaves_nothing_behind(local: LocalEngine) -> None:
    async with EngineServer(local, key=KEY) as server:
        port = await server.listen("127.0.0.1", 0)
        engine = await connect(f"127.0.0.1:{port}", key=KEY)
        running = asyncio.create_task(engine.generate(long()))
        await until(lambda: local.statistics().running == 1)
        engine._writer.transport.abort()  # pyright: ignore[reportPrivateUsage]
        with pytest.raises(EngineError, match="gone"):
            await running
        await until(lambda: local.statistics().running == 0)
        with pytest.raises(EngineError, match="create a new one"):
            await engine.generate(long(1))
        await engine.close()


async def test_a_client_that_goes_while_it_pauses_leaves_nobody_waiting(
    local: LocalEngine,
) -> None:
    async with EngineServer(local, key=KEY) as server, asyncio.timeout(DEADLINE_S):
        port = await server.listen("127.0.0.1", 0)
        gone, stays = [await connect(f"127.0.0.1:{port}", key=KEY) for _ in range(2)]
        # A pause that has ended is nobody's any more.
        await stays.pause()
        await stays.resume()
        await gone.pause()
        running = asyncio.create_task(stays.generate(long()))
        await until(lambda: local.statistics().waiting == 1)
        gone._writer.transport.abort()  # pyright: ignore[reportPrivateUsage]
        assert len((await running).token_ids) == 200
        await asyncio.gather(gone.close(), stays.close())


async def test_a_client_that_goes_lets_another_ones_pause_stand(local: LocalEngine) -> None:
    async with EngineServer(local, key=KEY) as server, asyncio.timeout(DEADLINE_S):
        port = await server.listen("127.0.0.1", 0)
        first, second = [await connect(f"127.0.0.1:{port}", key=KEY) for _ in range(2)]
        await first.pause()
        await first.resume()
        await second.pause()
        await first.close()
        running = asyncio.create_task(second.generate(long()))
        await until(lambda: local.statistics().waiting == 1)
        await second.ping()
        assert local.statistics().sampled_tokens == 0
        await second.resume()
        await running
        await second.close()


async def test_a_silent_client_is_taken_for_dead(local: LocalEngine) -> None:
    async with EngineServer(local, key=KEY, silence_s=0.5) as server:
        port = await server.listen("127.0.0.1", 0)
        # This one pings every ten seconds: to such a server it is dead.
        engine = await connect(f"127.0.0.1:{port}", key=KEY, silence_s=60.0)
        await local.pause()
        running = asyncio.create_task(engine.generate(long()))
        with pytest.raises(EngineError, match="gone"):
            await asyncio.wait_for(running, DEADLINE_S)
        await until(lambda: local.statistics().waiting == 0)
        await engine.close()


async def test_a_silent_server_is_an_engine_failure() -> None:
    """It greets, and then hangs: nothing that waits for it waits for ever."""

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        write_frame(writer, EngineFrame({"hello": PROTOCOL, "nonce": "00"}))
        await read_frame(reader)
        write_frame(writer, EngineFrame({"scores": False, "version": 0}))

    async with pretender(greet) as address:
        engine = await connect(address, key=KEY, silence_s=0.5)
        calls = [engine.generate(long()), engine.pause(), engine.load({}, 1)]
        async with asyncio.timeout(DEADLINE_S):
            ends = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(end) for end in ends] == [EngineLost] * 3
        assert "sent nothing for" in str(ends[0])
        await engine.close()


async def test_one_that_is_never_ready_is_late() -> None:
    async def nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None: ...

    async with pretender(nothing) as address:
        with pytest.raises(EngineError, match=r"not ready within 0\.3 s; raise engine\.start_s"):
            await connect(address, key=KEY, start_s=0.3)


async def test_another_protocol_is_named() -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        write_frame(writer, EngineFrame({"hello": PROTOCOL + 1, "nonce": "00"}))

    async with pretender(greet) as address:
        with pytest.raises(ConfigError, match=f"protocol {PROTOCOL + 1}"):
            await connect(address, key=KEY)


@pytest.mark.parametrize("head_bytes", [2**12 + 1, 2**26, 2**32 - 1])
async def test_who_has_not_proved_the_key_says_little(local: LocalEngine, head_bytes: int) -> None:
    """The connection ends with the lengths: nothing is kept of what such a one sends."""
    async with EngineServer(local, key=KEY) as server:
        port = await server.listen("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.timeout(DEADLINE_S):
            assert (await read_greeting(reader)).head["hello"] == PROTOCOL
            writer.write(struct.pack("<IQ", head_bytes, 0))
            assert await reader.read() == b""
        writer.close()


HEADS = [
    "[" * 4_000,
    '{"proof": ' + "[" * 2_000,
    '{"proof": "\\ud800"}',
    "9" * 4_000,
    "\xff",
    "NaN",
]


@pytest.mark.parametrize("head", HEADS)
@watched
async def test_a_greeting_that_makes_no_sense_ends_one_connection(
    local: LocalEngine, head: str
) -> None:
    data = head.encode("latin-1")
    async with EngineServer(local, key=KEY) as server:
        port = await server.listen("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.timeout(DEADLINE_S):
            await read_greeting(reader)
            writer.write(struct.pack("<IQ", len(data), 0) + data)
            assert await reader.read() == b""
        writer.close()
        async with await connect(f"127.0.0.1:{port}", key=KEY) as engine:
            assert engine.version == 0


@given(st.binary(max_size=40) | st.tuples(st.integers(0, 50), st.binary(max_size=40)))
def test_any_bytes_are_a_frame_or_the_end(data: bytes | tuple[int, bytes]) -> None:
    raw = data if isinstance(data, bytes) else struct.pack("<IQ", data[0], 0) + data[1]

    async def read() -> EngineFrame:
        reader = asyncio.StreamReader()
        reader.feed_data(raw)
        reader.feed_eof()
        return await read_frame(reader)

    with suppress(FrameStreamClosed):
        asyncio.run(read())


# --- what travels ---------------------------------------------------------------------------------

ids = st.integers(0, 2**40)
logprobs = st.floats(max_value=0, allow_nan=False)
tops = st.lists(st.lists(st.tuples(ids, logprobs), max_size=3).map(tuple), max_size=4)
samplings = st.builds(
    Sampling, temperature=st.floats(0, 100), top_p=st.floats(0.01, 1), top_k=st.integers(0, 9)
)


@st.composite
def completions(draw: st.DrawFn) -> Completion:
    tokens = tuple(draw(st.lists(ids, max_size=5)))
    count = len(tokens)
    return Completion(
        token_ids=tokens,
        logprobs=tuple(draw(st.lists(logprobs, min_size=count, max_size=count))),
        versions=tuple(draw(st.lists(st.integers(0, 2**40), min_size=count, max_size=count))),
        finish=draw(st.sampled_from(("stop", "length", "aborted"))),
        top_logprobs=tuple(draw(tops)),
        entropies=tuple(draw(st.lists(st.floats(0, 20), max_size=5))),
        prompt_cached_tokens=draw(st.integers(0, 10**6)),
    )


def travelled(frame: EngineFrame) -> EngineFrame:
    """Return what comes out at the other end of a stream."""

    async def there() -> EngineFrame:
        reader = asyncio.StreamReader()
        reader.feed_data(frame.to_bytes() + frame.body)
        reader.feed_eof()
        return await read_frame(reader)

    return asyncio.run(there())


@given(completions())
def test_a_completion_travels_whole(completion: Completion) -> None:
    assert read_completion(travelled(completion_frame(completion))) == completion


shown = st.lists(
    st.builds(
        ImageSpan,
        st.builds(Image, st.binary(max_size=20), st.just("image/webp")),
        st.integers(0, 9),
        st.integers(0, 9),
    ),
    max_size=3,
).map(tuple)


@given(
    st.builds(
        GenerateRequest,
        id=st.just("r"),
        prompt=st.lists(ids, max_size=9).map(tuple),
        max_new_tokens=st.integers(1, 10**6),
        sampling=samplings,
        stop_token_ids=st.frozensets(ids, max_size=3),
        stop_strings=st.lists(st.text(), max_size=2).map(tuple),
        begun_tokens=st.integers(0, 9),
        top_logprobs=st.integers(0, 20),
        entropies=st.booleans(),
        seed=st.integers(0, 2**64),
        images=shown,
    )
)
def test_a_request_travels_whole(request: GenerateRequest) -> None:
    assert read_request(travelled(request_frame(request)), "r") == request


@given(
    st.builds(
        ScoreRequest,
        id=st.just("s"),
        prompt=st.lists(ids, max_size=9).map(tuple),
        token_ids=st.lists(ids, max_size=9).map(tuple),
        sampling=samplings,
        top_logprobs=st.integers(0, 20),
        entropies=st.booleans(),
        distribution=st.booleans(),
        images=shown,
    ),
    st.builds(
        Scores,
        logprobs=st.lists(logprobs, max_size=9).map(tuple),
        version=st.integers(-1, 9),
        top_logprobs=tops.map(tuple),
        entropies=st.lists(st.floats(0, 20), max_size=5).map(tuple),
        distribution=st.lists(logprobs, max_size=9).map(tuple),
    ),
)
def test_scores_travel_whole(request: ScoreRequest, scores: Scores) -> None:
    assert read_score(travelled(score_frame(request)), "s") == request
    assert read_scores(travelled(scores_frame(scores))) == scores


@given(st.binary(max_size=60))
def test_noise_is_no_frame(noise: bytes) -> None:
    with pytest.raises(FrameStreamClosed):
        travelled(_Raw(noise))


class _Raw(EngineFrame):
    """Bytes that pretend to be a frame."""

    def __init__(self, data: bytes) -> None:
        super().__init__({}, data)

    def to_bytes(self) -> bytes:
        return b""


@pytest.mark.parametrize(
    "arrays", [[["a", "<i8", 3]], [["a", "<i8", -1]], [["a", "|O8", 1]], [["a", "<i8", 10**18]]]
)
def test_arrays_that_are_not_there_are_refused(arrays: list[Any]) -> None:
    with pytest.raises(ValueError, match=r"ends at|an array of"):
        FrameReader(EngineFrame({"arrays": arrays}, b"\0" * 16))
