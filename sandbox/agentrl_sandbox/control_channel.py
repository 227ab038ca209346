"""The host's end of a socket to a supervisor or a keeper: requests out, replies in, by number.

A reply may bring a descriptor: the socket of a new session, the line to an interpreter.
"""

import asyncio
import itertools
import os
import socket
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

from agentrl.errors import SandboxError
from agentrl_sandbox.inside.frames import ChannelFrame, ChannelFrameReader, FrameError, encode

GREETING = 0
"""The number of the first frame, which answers no request."""
EVENT = -1
"""The number of a frame that answers no request at all."""
_CHUNK_BYTES = 2**16
_FDS_MAX = 64


class ControlReply(NamedTuple):
    """An answer, and the descriptors it brought, for the caller to own."""

    frame: ChannelFrame
    fds: tuple[int, ...] = ()

    def drop(self) -> None:
        """Close the descriptors."""
        for fd in self.fds:
            os.close(fd)


class SocketWriter:
    """Sends what a socket takes at once, and the rest when it takes more; it does not own it."""

    def __init__(self, end: socket.socket, on_error: Callable[[OSError], None]) -> None:
        self._end = end
        self._on_error = on_error
        self._loop = asyncio.get_running_loop()
        self._out = bytearray()
        self._waits = False
        end.setblocking(False)

    def send(self, data: bytes) -> None:
        """Send in the order of calls."""
        is_idle = not self._out
        self._out += data
        if is_idle:
            self._flush()
            if self._out:
                self._waits = True
                self._loop.add_writer(self._end.fileno(), self._flush)

    def _flush(self) -> None:
        try:
            del self._out[: self._end.send(self._out)]
        except BlockingIOError:
            return
        except OSError as error:
            self._out.clear()
            self._stop_waiting()
            self._on_error(error)
            return
        if not self._out:
            self._stop_waiting()

    def _stop_waiting(self) -> None:
        if self._waits:
            self._waits = False
            self._loop.remove_writer(self._end.fileno())


class ControlChannel:
    """Frames and descriptors over a socket, which it owns.

    When it ends, every request in flight raises `SandboxError` at once. A descriptor that nobody
    waits for any more is closed.
    """

    def __init__(
        self,
        end: socket.socket,
        why_ended: Callable[[], str],
        *,
        on_event: Callable[[ControlReply], None] = ControlReply.drop,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._end = end
        self._why_ended = why_ended
        self._on_event = on_event
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._reader = ChannelFrameReader()
        self._fds: deque[int] = deque()
        self._writer = SocketWriter(end, lambda _: self.close())
        self._waiting: dict[int, asyncio.Future[ControlReply]] = {
            GREETING: self._loop.create_future()
        }
        self._numbers = itertools.count(GREETING + 1)
        self.ended = False
        self._loop.add_reader(end.fileno(), self._readable)

    async def greeting(self, within_s: float) -> ControlReply:
        """Return the first frame."""
        if self.ended:
            raise SandboxError(self._why_ended())
        return await self._reply(GREETING, self._waiting[GREETING], within_s)

    async def ask(
        self, body: Mapping[str, object], blob: bytes = b"", *, within_s: float
    ) -> ControlReply:
        """Send a request and return its reply.

        `SandboxError` when the channel ends or the deadline passes. A caller that is cancelled
        leaves its request behind; the reply is discarded.
        """
        number, future = self.post(body, blob)
        return await self._reply(number, future, within_s)

    def post(
        self, body: Mapping[str, object], blob: bytes = b""
    ) -> tuple[int, asyncio.Future[ControlReply]]:
        """Send a request; return its number and what will be its reply."""
        if self.ended:
            raise SandboxError(self._why_ended())
        number = next(self._numbers)
        future: asyncio.Future[ControlReply] = self._loop.create_future()
        self._waiting[number] = future
        self.send(encode({**body, "id": number}, blob))
        return number, future

    def send(self, data: bytes) -> None:
        """Send without waiting; nothing once the channel has ended."""
        if not self.ended:
            self._writer.send(data)

    def close(self) -> None:
        """Close the socket; whoever is at the other end goes with it. Idempotent."""
        if self.ended:
            return
        self.ended = True
        self._loop.remove_reader(self._end.fileno())
        self._loop.remove_writer(self._end.fileno())
        self._end.close()
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()
        for future in self._waiting.values():
            _fail(future, self._why_ended())
        self._waiting.clear()
        self._on_end()

    async def _reply(
        self, number: int, future: asyncio.Future[ControlReply], within_s: float
    ) -> ControlReply:
        text = f"the sandbox did not answer within {within_s:g} s"
        timer = self._loop.call_later(within_s, _fail, future, text)
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                future.result().drop()
            raise
        finally:
            timer.cancel()
            self._waiting.pop(number, None)

    def _readable(self) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(
                self._end, _CHUNK_BYTES, _FDS_MAX, socket.MSG_CMSG_CLOEXEC
            )
            self._fds += fds
            frames = self._reader.feed(data)
        except BlockingIOError:
            return
        except (OSError, FrameError):
            self.close()
            return
        for frame in frames:
            if not self.ended:
                self._answer(frame)
        if not data:
            self.close()

    def _answer(self, frame: ChannelFrame) -> None:
        number = frame.body["id"]
        future = self._waiting.pop(number, None)
        count = int(frame.body.get("fds", 0))
        if count > len(self._fds):  # those that do not fit into our table are dropped by the kernel
            if future is not None:
                _fail(future, "no file descriptor is left for a session; raise `ulimit -n`")
            return
        reply = ControlReply(frame, tuple(self._fds.popleft() for _ in range(count)))
        if number == EVENT:
            self._on_event(reply)
        elif future is None or future.done():
            reply.drop()
        else:
            future.set_result(reply)


def _fail(future: asyncio.Future[ControlReply], text: str) -> None:
    if not future.done():
        future.set_exception(SandboxError(text))
        future.exception()  # seen, also when nobody is left to be told
