"""Packed bodies of an endpoint's answers: whatever they unpack to, no more than a limit is held.

Mutants seen caught: what they unpack to not bounded; gzip in gzip unpacked; another packing taken
as it is; bytes behind the end not looked at; the loop not left between two pieces; a refusal that
is packed wrongly without its status.
"""

import gzip
import tracemalloc
import zlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import httpx
import pytest

from agentrl.errors import EngineError
from agentrl.runtime.http_body import PIECE_BYTES, read_pieces
from agentrl.runtime.http_endpoint import HttpEndpoint, HttpEndpointClient
from agentrl.runtime.json_limits import JsonLimits
from tests.support.watchdog import watched

ENDPOINT = HttpEndpoint(url="http://model.test/v1", model="m", retries=0)
LIMITS = JsonLimits(text_bytes=2**20)
PACKED = {"content-encoding": "gzip"}
TWICE = {"content-encoding": "gzip, gzip"}


class Wire(httpx.AsyncByteStream):
    """The bytes of a body, in these parts."""

    def __init__(self, parts: Sequence[bytes]) -> None:
        self.parts = parts

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        for part in self.parts:
            yield part


def answering(status: int, headers: dict[str, str], *parts: bytes) -> HttpEndpointClient:
    def answer(request: httpx.Request) -> httpx.Response:
        assert request.headers["accept-encoding"] == "gzip"
        return httpx.Response(status, headers=headers, stream=Wire(parts))

    return HttpEndpointClient(ENDPOINT, transport=httpx.MockTransport(answer))


def bomb(mib: int, *, of: bytes = b" ") -> bytes:
    """Return so many MiB of one byte, packed to a thousandth."""
    packer = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)
    return b"".join(packer.compress(of * 2**20) for _ in range(mib)) + packer.flush()


@pytest.mark.parametrize("parts", [1, 7])
async def test_what_is_packed_is_read(parts: int) -> None:
    data = gzip.compress(b'{"a": "' + b"b" * 3 * PIECE_BYTES + b'"}')
    step = -(-len(data) // parts)
    client = answering(200, PACKED, *(data[at : at + step] for at in range(0, len(data), step)))
    assert await client.ask("models", limits=LIMITS) == {"a": "b" * 3 * PIECE_BYTES}
    plain = answering(200, {"content-encoding": "Identity"}, b"[1", b"]")
    assert await plain.ask("models") == [1]


@pytest.mark.parametrize(
    ("status", "headers", "body", "words"),
    [
        (200, PACKED, bomb(200), "an answer of more than 1048576 bytes"),
        (400, PACKED, bomb(200), "refused a request: 400 {301}$"),
        (400, PACKED, bomb(200, of=b"\0"), "refused a request: 400 {301}$"),
        (200, TWICE, gzip.compress(bomb(200)), "unpacked: it is compressed with 'gzip, gzip', but"),
        (400, TWICE, gzip.compress(bomb(200)), "refused a request: 400 .*'gzip, gzip', but only"),
        (503, {"content-encoding": "br"}, b"x", "after 1 tries: 503  .*with 'br', but only gzip"),
        (200, {"content-encoding": "br"}, b"[]", "'br', but only gzip was requested; turn its"),
        (200, PACKED, b"[]", "cannot be unpacked: it is no gzip: Error -3"),
        (200, PACKED, b"", "cannot be parsed"),
    ],
)
@watched
async def test_what_is_packed_costs_no_more_than_the_limit(
    status: int, headers: dict[str, str], body: bytes, words: str
) -> None:
    client = answering(status, headers, body)
    tracemalloc.start()
    try:
        with pytest.raises(EngineError, match=words):
            await client.ask("models", limits=LIMITS)
        assert tracemalloc.get_traced_memory()[1] < 2**23
    finally:
        tracemalloc.stop()


async def test_nothing_follows_the_end() -> None:
    client = answering(200, PACKED, gzip.compress(b"[]"), b"more")
    with pytest.raises(EngineError, match="bytes follow the end of its gzip"):
        await client.ask("models")


@watched
async def test_a_packed_stream_is_read_line_by_line() -> None:
    """Each event is there once its bytes are; a flood of empty lines leaves the loop free."""
    packer = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)
    sent: list[int] = []

    def pack(data: bytes) -> bytes:
        return packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH)

    class Events(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncGenerator[bytes]:
            for number in range(3):
                sent.append(number)
                yield pack(b"data: %d\r\n\r\n" % number)
            yield pack(b"\n" * 4 * 2**20)
            yield pack(b"data: [DONE]\n\n")

    headers = PACKED | {"content-type": "text/event-stream"}
    answers = httpx.MockTransport(lambda _: httpx.Response(200, headers=headers, stream=Events()))
    client = HttpEndpointClient(ENDPOINT, transport=answers)
    found = [(event, len(sent)) async for event in client.events("completions", {})]
    assert found == [(0, 1), (1, 2), (2, 3)]


async def test_a_piece_has_a_longest_size() -> None:
    response = httpx.Response(
        200, headers=PACKED, stream=Wire([bomb(1)]), request=httpx.Request("GET", ENDPOINT.url)
    )
    async with aclosing(read_pieces(response)) as pieces:
        sizes = [len(piece) async for piece in pieces]
    assert sum(sizes) == 2**20
    assert max(sizes) == PIECE_BYTES
