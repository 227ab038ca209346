"""The line from the host to one interpreter: a cell out, its outcome back, and nothing else.

What comes back was perhaps made up by the code that ran. So it is parsed with caps, it must answer
the question that was asked, and anything more is a violation that ends the interpreter.
"""

import asyncio
import secrets
import socket
from itertools import accumulate, pairwise
from typing import Any, cast

from agentrl.errors import SandboxError
from agentrl.message import Image
from agentrl.runtime.json_limits import JsonLimitError, JsonLimits, read_json
from agentrl.sandbox import ExecResult, ExecStatus
from agentrl_sandbox.control_channel import SocketWriter
from agentrl_sandbox.inside.frames import FIGURE_BYTES_MAX, FIGURES_MAX, HEADER, START_S, encode

_CHUNK_BYTES = 2**18
_STATUSES: dict[str, ExecStatus] = {"ok": "ok", "error": "error", "oom": "oom", "limit": "limit"}
_TEXTS = ("value", "error", "stdout", "stderr")
TEXT_BYTES_MORE = 2**14
"""That a text may have beyond the limit of output: where it was cut, and how much is gone."""
_DEPTH, _VALUES = 3, 64
"""Of an answer: a few texts, and a list of a few sizes."""


class LineBroken(Exception):
    """The interpreter closed the line; it has ended, or is about to."""


class ProtocolViolation(Exception):
    """The interpreter sent what it must not send."""


class CellDeadlineError(Exception):
    """The deadline passed before the answer came."""


class InterpreterChannel:
    """One interpreter's channel, which it owns. One question at a time."""

    def __init__(self, end: socket.socket, *, life: int, nonce: str, output_bytes: int) -> None:
        self.life = life
        self.open = True
        self._end = end
        self._fd = end.fileno()
        self._greeting = nonce
        self._greeted = False
        self._output_bytes = output_bytes
        # JSON escapes a byte of output with six, at worst.
        text_bytes = 6 * 4 * (output_bytes + TEXT_BYTES_MORE) + 2**12
        self._json_limits = JsonLimits(text_bytes=text_bytes, depth=_DEPTH, values=_VALUES)
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray()
        self._writer = SocketWriter(end, lambda error: self._break(LineBroken(str(error))))
        self._answer: asyncio.Future[tuple[dict[str, Any], bytes]] | None = None
        self._broken: Exception | None = None
        self._loop.add_reader(self._fd, self._readable)

    async def wait_greeting(self) -> None:
        """Wait until the interpreter is ready; `SandboxError`, and closed, when it never is."""
        try:
            body, _ = await self._wait_answer(self._expect(), START_S)
            if body.get("nonce") != self._greeting:
                raise ProtocolViolation("its greeting was invalid")
        except (CellDeadlineError, LineBroken, ProtocolViolation) as error:
            self.close()
            raise SandboxError(repr(error)) from error
        except BaseException:
            self.close()
            raise
        self._greeted = True

    async def ask(self, code: str, *, timeout_s: float) -> ExecResult:
        """Run a cell. May raise `CellDeadlineError`, `LineBroken` and `ProtocolViolation`."""
        nonce = secrets.token_hex(8)
        answer = self._expect()
        if self._broken is None:
            self._writer.send(encode({"op": "exec", "code": code, "nonce": nonce}))
        body, blob = await self._wait_answer(answer, timeout_s)
        if body.get("nonce") != nonce:
            raise ProtocolViolation("a message without a matching request")
        return _parse_result(body, blob, self._output_bytes)

    def close(self) -> None:
        """Close it. Idempotent."""
        if self.open:
            self.open = False
            self._loop.remove_reader(self._fd)
            self._loop.remove_writer(self._fd)
            self._end.close()
            self._break(LineBroken("closed"))

    async def _wait_answer(
        self, answer: asyncio.Future[tuple[dict[str, Any], bytes]], timeout_s: float
    ) -> tuple[dict[str, Any], bytes]:
        timer = self._loop.call_later(timeout_s, self._expire)
        try:
            return await answer
        finally:
            timer.cancel()

    def _expect(self) -> asyncio.Future[tuple[dict[str, Any], bytes]]:
        self._answer = self._loop.create_future()
        if self._broken is not None:
            self._answer.set_exception(self._broken)
        elif self._buffer:
            self._parse()  # the greeting may have been there before we waited for it
        return self._answer

    def _readable(self) -> None:
        try:
            data = self._end.recv(_CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._break(LineBroken(str(error)))
            return
        if not data:
            self._break(LineBroken("closed by the interpreter"))
            return
        self._buffer += data
        self._parse()

    def _parse(self) -> None:
        data = self._buffer
        if len(data) < HEADER.size:
            return
        text_bytes, blob_bytes = HEADER.unpack_from(data)
        if text_bytes > self._json_limits.text_bytes or blob_bytes > FIGURES_MAX * FIGURE_BYTES_MAX:
            self._break(ProtocolViolation(f"a message of {text_bytes} + {blob_bytes} bytes"))
            return
        middle, end = HEADER.size + text_bytes, HEADER.size + text_bytes + blob_bytes
        if len(data) < end:
            return
        if self._answer is None or self._answer.done():
            if not self._greeted:
                return  # nobody waits for the greeting yet
            self._break(ProtocolViolation("a message without a matching request"))
            return
        try:
            body = read_json(bytes(data[HEADER.size : middle]), self._json_limits)
        except JsonLimitError as error:
            self._break(ProtocolViolation(f"an invalid message: {error}"))
            return
        if not isinstance(body, dict) or len(data) > end:
            self._break(ProtocolViolation("a message with invalid content"))
            return
        self._buffer = bytearray()
        self._answer.set_result((cast("dict[str, Any]", body), bytes(data[middle:end])))

    def _expire(self) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(CellDeadlineError())

    def _break(self, why: Exception) -> None:
        if self._broken is None:
            self._broken = why
            if self.open:
                self._loop.remove_reader(self._fd)
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(self._broken)


def _parse_result(body: dict[str, Any], blob: bytes, output_bytes: int) -> ExecResult:
    """Return the result in a well-formed answer; `ProtocolViolation` for any other."""
    texts = [body.get(key) for key in _TEXTS]
    status, sizes = body.get("status"), body.get("images")
    if (
        not isinstance(status, str)
        or status not in _STATUSES
        or not all(text is None or isinstance(text, str) for text in texts)
        or any(text is not None and len(text) > output_bytes + TEXT_BYTES_MORE for text in texts)
        or not isinstance(sizes, list)
        or len(sizes) > FIGURES_MAX
        or not all(type(size) is int and 0 <= size <= FIGURE_BYTES_MAX for size in sizes)
        or sum(sizes) != len(blob)
    ):
        raise ProtocolViolation("its result is invalid")
    value, error, stdout, stderr = texts
    return ExecResult(
        status=_STATUSES[status],
        stdout=stdout or "",
        stderr=stderr or "",
        value=value,
        error=error,
        images=tuple(Image(blob[i:j]) for i, j in pairwise(accumulate(sizes, initial=0))),
        truncated=body.get("truncated") is True,
    )
