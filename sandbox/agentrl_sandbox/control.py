"""The host's end of a supervisor's socket: requests out, sockets of opened sessions in."""

import asyncio
import itertools
import os
import socket
from collections.abc import Callable

from agentrl.errors import SandboxError
from agentrl_sandbox.inside.frames import Frame, FrameError, Reader, encode

READY = 0
"""The number of the first frame, which answers no request and brings no socket."""
_CHUNK_BYTES = 2**16
_FDS_MAX = 64
_RETRY_S = 0.001


class Control:
    """Frames and sockets over a socket, which it owns.

    When it ends, every request in flight raises `SandboxError` at once. A session's socket that
    nobody waits for any more is closed, and its session with it.
    """

    def __init__(self, end: socket.socket, why_ended: Callable[[], str]) -> None:
        self._end = end
        self._why_ended = why_ended
        self._reader = Reader()
        self._fds: list[int] = []
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, asyncio.Future[int]] = {READY: self._loop.create_future()}
        self._numbers = itertools.count(READY + 1)
        self.ended = False
        end.setblocking(False)
        self._loop.add_reader(end.fileno(), self._readable)

    async def ready(self, within_s: float) -> None:
        """Wait for the first frame."""
        if self.ended:
            raise SandboxError(self._why_ended())
        await self._reply(READY, self._waiting[READY], within_s)

    async def open(self, within_s: float) -> socket.socket:
        """Return the socket of a new session; what it says first is its greeting."""
        if self.ended:
            raise SandboxError(self._why_ended())
        number = next(self._numbers)
        future: asyncio.Future[int] = self._loop.create_future()
        self._waiting[number] = future
        try:
            await self.send(encode({"op": "open", "id": number}), within_s)
            fd = await self._reply(number, future, within_s)
        except BaseException:
            self._waiting.pop(number, None)
            if future.done() and not future.cancelled() and future.exception() is None:
                os.close(future.result())
            raise
        return socket.socket(fileno=fd)

    async def send(self, data: bytes, within_s: float) -> None:
        """Send a frame. The supervisor always listens, so this hardly ever waits."""
        deadline_s = self._loop.time() + within_s
        while data:
            try:
                data = data[self._end.send(data) :]
            except BlockingIOError:
                if self._loop.time() > deadline_s:
                    raise SandboxError("the sandbox supervisor does not listen") from None
                await asyncio.sleep(_RETRY_S)
            except OSError as error:
                raise SandboxError(f"the sandbox supervisor is gone: {error}") from error

    def close(self) -> None:
        """Close the socket; the supervisor at the other end goes with it. Idempotent."""
        if self.ended:
            return
        self.ended = True
        self._loop.remove_reader(self._end.fileno())
        self._end.close()
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()
        for future in self._waiting.values():
            _fail(future, self._why_ended())
        self._waiting.clear()

    async def _reply(self, number: int, future: asyncio.Future[int], within_s: float) -> int:
        text = f"the sandbox supervisor did not answer within {within_s:g} s"
        timer = self._loop.call_later(within_s, _fail, future, text)
        try:
            return await future
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
            self._answer(frame)
        if not data:
            self.close()

    def _answer(self, frame: Frame) -> None:
        future = self._waiting.pop(frame.body["id"], None)
        if (error := frame.body.get("error")) is not None:
            if future is not None:
                _fail(future, error)
            return
        fd = -1
        if frame.body["id"] != READY:
            if not self._fds:  # the kernel drops what does not fit into our table of open files
                if future is not None:
                    _fail(future, "no file descriptor left for a session; raise `ulimit -n`")
                return
            fd = self._fds.pop(0)
        if future is not None and not future.done():
            future.set_result(fd)
        elif fd >= 0:
            os.close(fd)


def _fail(future: asyncio.Future[int], text: str) -> None:
    if not future.done():
        future.set_exception(SandboxError(text))
        future.exception()  # seen, also when nobody is left to be told
