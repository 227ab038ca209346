"""Bodies of requests: received within a budget of memory, and read off the event loop."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from agentrl.gateway.dialect import BODY_LIMITS, LARGEST_BYTES, BadRequest, Body, LongRequest
from agentrl.runtime.json_limits import JsonLimitError, read_json
from agentrl.runtime.threads import run_in_thread

T = TypeVar("T")

BUDGET_BYTES = 4 * LARGEST_BYTES
"""Limit on all bodies that are being received or read; more wait, their bytes not taken in."""
RECEIVE_S = 60.0
"""Seconds in which a body has to arrive, once it is let in."""
SMALL_BYTES = 2**16
"""A body up to here is read at once, without a thread."""
MOST_MARKS = 2_000_000
"""Limit of a body's commas, opening brackets and escapes, which bound the time to read it."""


class BodyReader:
    """Receives and reads the bodies of all requests; one event loop's own."""

    def __init__(self, budget_bytes: int = BUDGET_BYTES) -> None:
        self._free_bytes = budget_bytes
        self._freed = asyncio.Event()
        self._first = asyncio.Lock()
        """Of those that wait for their share of the budget, the one whose turn it is."""
        self._reading = asyncio.Lock()
        """One large body is read at a time: each is several times its size while it is read."""

    async def read(
        self, chunks: AsyncIterable[bytes], *, length: str | None, read: Callable[[Body], T]
    ) -> T:
        """Return the result of `read` for a body; `length` is its header's, where there is one.

        Raises `BadRequest` for a body that is too large or late, or no JSON object.
        """
        size = LARGEST_BYTES if length is None or not length.isdecimal() else int(length[:20])
        if size > LARGEST_BYTES:
            raise LongRequest(
                f"a request has {size} bytes, but the limit is {LARGEST_BYTES}; send less"
            )
        async with self._reserve(size):
            data = await _receive(chunks, size)
            if len(data) <= SMALL_BYTES:
                return read(parse_body(data))
            async with self._reading:
                return await run_in_thread(lambda: read(parse_body(data)))

    @asynccontextmanager
    async def _reserve(self, size: int) -> AsyncGenerator[None]:
        async with self._first:
            while self._free_bytes < size:
                self._freed.clear()
                await self._freed.wait()
            self._free_bytes -= size
        try:
            yield
        finally:
            self._free_bytes += size
            self._freed.set()


def parse_body(data: bytes) -> Body:
    """Return the JSON object of a body; `BadRequest` says what is wrong with it."""
    marks = sum(map(data.count, (b",", b"[", b"{", b"\\")))
    if marks > MOST_MARKS:
        raise BadRequest(
            f"the body has {marks} commas, brackets and escapes, but the limit is {MOST_MARKS}; "
            "send less"
        )
    try:
        body: Any = read_json(data, BODY_LIMITS)
    except JsonLimitError as error:
        raise BadRequest(f"the body is not valid JSON: {error}") from error
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object")
    return body  # pyright: ignore[reportUnknownVariableType]


async def _receive(chunks: AsyncIterable[bytes], most: int) -> bytes:
    received = bytearray()
    try:
        async with asyncio.timeout(RECEIVE_S):
            async for chunk in chunks:
                received += chunk
                if len(received) > most:
                    raise LongRequest(f"a request has more than {most} bytes; send less")
    except TimeoutError:
        raise BadRequest(
            f"the body did not arrive within {RECEIVE_S:g} s; send it without pauses"
        ) from None
    return bytes(received)
