"""The host's end of a channel: requests out, replies in, each matched by its number."""

import asyncio
import itertools
import socket
from collections.abc import Callable
from typing import Any

from agentrl.errors import SandboxError
from agentrl_sandbox.inside.frames import Frame, FrameError, Reader, encode

GREETING = 0
"""The number of the first frame, which answers no request."""


async def connect(end: socket.socket, why_ended: Callable[[], str]) -> "Channel":
    """Return a channel over a socket, which it owns from here on, also when this is cancelled."""
    loop = asyncio.get_running_loop()
    end.setblocking(False)
    try:
        _, channel = await loop.create_connection(lambda: Channel(why_ended), sock=end)
    except BaseException:
        end.close()
        raise
    return channel


class Channel(asyncio.Protocol):
    """Frames over a socket. When it ends, every request in flight raises `SandboxError` at once."""

    def __init__(self, why_ended: Callable[[], str]) -> None:
        self._why_ended = why_ended
        self._reader = Reader()
        self._transport: asyncio.Transport | None = None
        loop = asyncio.get_running_loop()
        self._waiting: dict[int, asyncio.Future[Frame]] = {GREETING: loop.create_future()}
        self._numbers = itertools.count(GREETING + 1)
        self.ended = False
        self.late_replies = 0
        """Replies to requests that nobody waits for any more, discarded."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Hand each reply to whoever asked; discard those nobody waits for."""
        try:
            frames = self._reader.feed(data)
        except FrameError:
            self.close()
            return
        for frame in frames:
            future = self._waiting.pop(frame.body.get("id", GREETING), None)
            if future is None or future.done():
                self.late_replies += 1
            else:
                future.set_result(frame)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail what is in flight."""
        self.ended = True
        error = SandboxError(self._why_ended())
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)
                future.exception()  # seen, also when nobody is left to be told
        self._waiting.clear()

    async def greeting(self, within_s: float) -> dict[str, Any]:
        """Return the first frame."""
        future = self._waiting.get(GREETING)
        if future is None:
            raise SandboxError(self._why_ended())
        return (await self._reply(GREETING, future, within_s)).body

    async def ask(self, body: dict[str, Any], blob: bytes = b"", *, within_s: float) -> Frame:
        """Send a request and return its reply.

        `SandboxError` when the channel ends or the deadline passes. A caller that is cancelled
        takes its request with it: the other side is told, and a reply is discarded.
        """
        if self._transport is None or self.ended:
            raise SandboxError(self._why_ended())
        number = next(self._numbers)
        future: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        self._transport.write(encode({**body, "id": number}, blob))
        try:
            return await self._reply(number, future, within_s)
        except asyncio.CancelledError:
            self._cancel(number, body)
            raise

    async def _reply(self, number: int, future: asyncio.Future[Frame], within_s: float) -> Frame:
        timer = asyncio.get_running_loop().call_later(within_s, self._give_up, number, within_s)
        try:
            return await future
        finally:
            timer.cancel()
            self._waiting.pop(number, None)

    def _give_up(self, number: int, after_s: float) -> None:
        future = self._waiting.pop(number, None)
        if future is not None and not future.done():
            future.set_exception(SandboxError(f"the sandbox did not answer within {after_s:g} s"))

    def _cancel(self, number: int, body: dict[str, Any]) -> None:
        if self._transport is not None and not self.ended:
            session = body.get("session")
            message = {"op": "cancel", "session": session, "cancels": number, "id": -1}
            self._transport.write(encode(message))

    def close(self) -> None:
        """Close the channel; the keeper at the other end goes with it. Idempotent."""
        if self._transport is not None:
            self._transport.close()
