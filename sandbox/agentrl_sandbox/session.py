"""One session as the host sees it: the `Sandbox` that tools and environments hold.

Cells go over the session's own line to its interpreter. Everything else, and above all ending an
interpreter, goes over the family's channel to the keeper.
"""

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import fields, replace
from typing import Any, Literal, Self

from agentrl.errors import ForkUnsupported, SandboxError
from agentrl.sandbox import ExecResult, ExecStatus, FileEntry, RunResult
from agentrl_sandbox.control_channel import ControlReply
from agentrl_sandbox.inside.files import ENTRIES_PAGE
from agentrl_sandbox.inside.frames import START_S, ChannelFrame
from agentrl_sandbox.interpreter_channel import (
    CellDeadlineError,
    InterpreterChannel,
    LineBroken,
    ProtocolViolation,
)
from agentrl_sandbox.session_forks import SessionForks

_OS_ERRORS: dict[str, type[OSError]] = {
    kind.__name__: kind
    for kind in (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
}
_FRESH = "variables are lost, files are kept, and the next cell starts in a fresh interpreter"
_RESTORED = "variables are as before the cell, files are kept"
_ENDED = "the session has ended and runs nothing any more"


class SandboxSession:
    """A persistent interpreter and a private directory inside the isolation.

    Requests to one session are served one after the other. What follows when its interpreter is
    lost (`timeout`, `oom`, `crash`, `violation`, or a cancelled `exec`) is `after_timeout` of the
    settings; files stay in any case.
    """

    def __init__(
        self,
        family: SessionForks,
        number: int,
        line: InterpreterChannel | None,
        place: ExitStack,
        *,
        on_close: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._family = family
        self._place = place
        self._number = number
        self._line = line
        self._on_close = on_close
        self._turn = asyncio.Lock()
        self._closed = False
        self._last_words: ExecResult | None = None
        """For the next cell, when the interpreter died between cells."""
        self._over: ExecResult | None = None
        """For every further cell, when the session has ended."""
        self._death: dict[str, Any] = {}
        """What was said of the interpreter that died last."""
        self._stopping: asyncio.Task[None] | None = None
        family.join(number, self.on_death, self.hang_up)

    async def exec(self, code: str, *, timeout_s: float | None = None) -> ExecResult:
        """Run a cell; `SandboxError` when the sandbox is gone or does not answer."""
        wall_s = self._family.settings.limits.wall_s
        timeout_s = wall_s if timeout_s is None else min(timeout_s, wall_s)
        async with self._turn:
            await self._ready()
            if (result := self._over or self._last_words) is not None:
                self._last_words = None
                return result
            if self._line is None and (refused := await self._spawn()) is not None:
                return refused
            if self._family.settings.after_timeout == "restore":
                await self._family.ask({"op": "spare", "session": self._number}, extra_s=START_S)
            async with self._family.admission.cell():
                return await self._cell(code, timeout_s)

    async def run(
        self,
        command: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str = ".",
        timeout_s: float | None = None,
    ) -> RunResult:
        """Run a program; `SandboxError` when the sandbox is gone or does not answer."""
        if not command:
            raise ValueError("the command is empty; give a program and its arguments")
        wall_s = self._family.settings.limits.wall_s
        timeout_s = wall_s if timeout_s is None else min(timeout_s, wall_s)
        body = {
            "op": "run",
            "session": self._number,
            "argv": [str(part) for part in command],
            "env": dict(env or {}),
            "cwd": cwd,
            "timeout_s": timeout_s,
        }
        async with self._turn:
            await self._ready()
            if self._over is not None:
                return RunResult(status=self._over.status, error=self._over.error)
            async with self._family.admission.cell():
                reply = await self._command(body, stdin, timeout_s)
        return RunResult(**{field.name: reply[field.name] for field in fields(RunResult)})

    async def _command(self, body: dict[str, Any], stdin: bytes, timeout_s: float) -> Any:
        number, future = self._family.channel.post(body, stdin)
        try:
            async with asyncio.timeout(timeout_s + START_S):
                reply = (await future).frame.body
        except asyncio.CancelledError:
            self._family.tell({"op": "cancel", "session": self._number, "cancels": number})
            raise
        except TimeoutError:
            self._family.channel.close()
            raise SandboxError("the sandbox did not end a command in time") from None
        if "gone" in reply:
            raise SandboxError(reply["gone"])
        return reply

    async def write(self, path: str, data: bytes) -> None:
        """Write a file below the session's directory, making parent directories."""
        limit_bytes = self._family.settings.limits.file_bytes
        if len(data) > limit_bytes:
            raise OSError(
                f"{path!r} has {len(data)} bytes, which exceeds "
                f"sandbox.limits.file_bytes={limit_bytes}"
            )
        await self._file("write", path, data)

    async def read(self, path: str) -> bytes:
        """Return a regular file below the session's directory; links are not followed."""
        return (await self._file("read", path)).blob

    async def entries(self, path: str = ".") -> tuple[FileEntry, ...]:
        """Return the entries of a directory below the session's directory, by name.

        `OSError` for more than a session may have: processes may make names as fast as they are
        read.
        """
        entries: list[FileEntry] = []
        page, after = [], ""
        while not entries or len(page) == ENTRIES_PAGE:
            page = (await self._file("entries", path, after=after)).body["entries"]
            if not page:
                break
            entries += (
                FileEntry(name=name, kind=kind, size_bytes=size) for name, kind, size in page
            )
            after = entries[-1].name
            if len(entries) > (files_max := self._family.settings.limits.files):
                raise OSError(
                    f"{path!r} has more than sandbox.limits.files={files_max} entries; list a "
                    "directory below it"
                )
        return tuple(entries)

    async def fork(self, *, keep_rng: bool = False) -> Self:
        """Return a copy: names, directory and working directory.

        The copy draws other random numbers from `random` and `numpy.random`, unless `keep_rng`.
        Open files share their offset with the original; other processes of the session are not
        copied. `ForkUnsupported` while the interpreter runs more than one thread.
        """
        async with self._turn:
            await self._ready()
            if (result := self._over or self._last_words) is not None:
                raise ForkUnsupported(f"this session cannot be forked now: {result.error}")
            place = await self._family.admission.fork()
            try:
                return await self._copy(place, keep_rng=keep_rng)
            except BaseException:
                place.close()
                raise

    async def _copy(self, place: ExitStack, *, keep_rng: bool) -> Self:
        body = {"op": "fork", "session": self._number, "keep_rng": keep_rng}
        request_task = asyncio.ensure_future(self._family.ask(body, extra_s=START_S))
        try:
            reply = await asyncio.shield(request_task)
        except asyncio.CancelledError:
            request_task.add_done_callback(self._family.drop_copy)
            raise
        if "unsupported" in reply.frame.body:
            why = reply.frame.body["unsupported"]
            raise ForkUnsupported(f"this session cannot be forked now: {why}")
        number, line = reply.frame.body["session"], self._family.open_line(reply)
        copy = type(self)(self._family, number, line, place, on_close=self._on_close)
        if line is not None:
            try:
                await copy.wait_greeting()
            except SandboxError as error:
                # Its original decides what a copy does first, as where the keeper waits for it.
                raise ForkUnsupported(f"this session cannot be forked now: {error}") from error
        return copy

    async def wait_greeting(self) -> None:
        """Wait until the interpreter at the other end is ready."""
        assert self._line is not None
        try:
            await self._line.wait_greeting()
        except BaseException as error:
            await self.close()
            if isinstance(error, SandboxError):
                raise SandboxError(f"the interpreter did not start: {error}") from error
            raise

    async def close(self) -> None:
        """End every process of the session and delete its directory. Idempotent."""
        if self._closed:
            return
        self._closed = True
        family, channel = self._family, self._family.channel
        family.leave(self._number)
        try:
            if not channel.ended:
                body = {"op": "close", "session": self._number}
                await channel.ask(body, within_s=START_S)
        except SandboxError:
            channel.close()  # gone already, or stuck: without its channel a keeper ends
        finally:
            self.hang_up()
            self._place.close()
            if family.members == 0:
                channel.close()
                if self._on_close is not None:
                    await self._on_close()

    def hang_up(self) -> None:
        """Close the line to the interpreter."""
        line, self._line = self._line, None
        if line is not None:
            line.close()

    async def _ready(self) -> None:
        if self._closed:
            raise SandboxError("this session is closed; open a new one")
        if self._stopping is not None:
            # Whoever stops waiting for the interpreter's end does not keep it from ending.
            await asyncio.shield(self._stopping)
            self._stopping = None

    async def _file(
        self,
        op: Literal["write", "read", "entries"],
        path: str,
        data: bytes = b"",
        **more: str,
    ) -> ChannelFrame:
        async with self._turn:
            await self._ready()
            body = {"op": op, "session": self._number, "path": path, **more}
            reply = (await self._family.ask(body, data)).frame
        if (fault := reply.body.get("fault")) is not None:
            raise SandboxError(f"{path[:100]!r} could not be handled ({op}): {fault}")
        if (kind := reply.body.get("os_error")) is not None:
            raise _OS_ERRORS.get(kind, OSError)(reply.body["text"])
        return reply

    # -- cells --------------------------------------------------------------------------------

    async def _spawn(self) -> ExecResult | None:
        """Get an interpreter; a result when the session may not have one any more."""
        reply = await self._family.ask({"op": "spawn", "session": self._number}, extra_s=START_S)
        body = reply.frame.body
        if "limit" in body:
            return ExecResult(status="limit", error=body["limit"])
        if "refused" in body:
            raise SandboxError(f"no interpreter for the session: {body['refused']}")
        line = self._family.open_line(reply)
        assert line is not None
        try:
            await line.wait_greeting()
        except SandboxError as error:
            raise SandboxError(f"no interpreter for the session: {error}") from error
        self._line = line
        return None

    async def _cell(self, code: str, timeout_s: float) -> ExecResult:
        if self._closed:
            self.hang_up()
            raise SandboxError("this session was closed in the meantime; open a new one")
        if (line := self._line) is None or self._last_words is not None:
            return await self._take_last_words(0.0)  # lost while this waited for its turn
        start_s = time.monotonic()
        try:
            outcome = await line.ask(code, timeout_s=timeout_s)
        except CellDeadlineError:
            what = f"stopped after {timeout_s:g} s"
            return await self._stop_cell(line, "timeout", what, time.monotonic() - start_s)
        except ProtocolViolation as error:
            return await self._stop_cell(line, "violation", str(error), time.monotonic() - start_s)
        except LineBroken:
            return await self._explain_break(line, time.monotonic() - start_s)
        except BaseException:
            self._line = None
            if self._family.settings.after_timeout == "end":
                self._over = ExecResult(status="timeout", error=f"the cell was cancelled; {_ENDED}")
            self._stopping = asyncio.create_task(self._stop_quietly(line))
            raise
        seconds = time.monotonic() - start_s
        if outcome.status == "oom":
            return await self._stop_cell(line, "oom", outcome.error or "", seconds, outcome)
        if self._family.settings.backend == "process":
            usage = await self._family.ask({"op": "usage", "session": self._number})
            if (over := usage.frame.body["over"]) is not None:
                outcome = replace(outcome, status="limit", error=over)
        return replace(outcome, seconds=seconds)

    async def _stop(self, line: InterpreterChannel, *, hung_up: bool = False) -> ControlReply:
        """Have the keeper end the interpreter; a spare, if there is one, takes its place."""
        self._line = None
        line.close()
        body = {"op": "stop", "session": self._number, "life": line.life, "hung_up": hung_up}
        reply = await self._family.ask(body, extra_s=START_S)
        await self._take_over(reply)
        return reply

    async def _take_over(self, reply: ControlReply) -> None:
        if (line := self._family.open_line(reply)) is not None:
            with suppress(SandboxError):
                await line.wait_greeting()
                self._line = line

    async def _stop_quietly(self, line: InterpreterChannel) -> None:
        with suppress(SandboxError):  # whoever comes next is told
            if "late" in (await self._stop(line)).frame.body:
                self._last_words = None  # of the cell that was cancelled

    async def _stop_cell(
        self,
        line: InterpreterChannel,
        status: ExecStatus,
        error: str,
        seconds: float,
        outcome: ExecResult | None = None,
    ) -> ExecResult:
        report = (await self._stop(line)).frame.body
        if "late" in report:
            # It had died by then, of what we stop it for; its end has been told of already.
            report, self._last_words = self._death, None
        if outcome is not None:
            report = {**report, "stdout": outcome.stdout, "stderr": outcome.stderr}
        return self._report_loss(report, status, error, seconds)

    async def _explain_break(self, line: InterpreterChannel, seconds: float) -> ExecResult:
        """Return the result of a cell whose interpreter hung up."""
        if self._closed:
            raise SandboxError("this session was closed in the meantime; open a new one")
        if self._last_words is None:
            report = (await self._stop(line, hung_up=True)).frame.body
            if "late" not in report:
                # Without a status it was alive, and is not any more.
                status = report.get("status", "violation")
                error = report.get("error", "the interpreter closed its channel")
                return self._report_loss(report, status, error, seconds)
        return await self._take_last_words(seconds)

    async def _take_last_words(self, seconds: float) -> ExecResult:
        await self._ready()
        result, self._last_words = self._last_words, None
        if result is None:
            raise SandboxError("the interpreter ended for an unknown reason")
        return replace(result, seconds=seconds)

    def on_death(self, event: ControlReply) -> None:
        """Hear from the keeper that the interpreter died."""
        body = self._death = event.frame.body
        self.hang_up()
        status, error = body["status"], body["error"]
        if body.get("signal") == signal.SIGKILL and self._family.was_short_of_memory():
            status, error = "oom", "the session and its files exceeded their memory limit"
        self._last_words = self._report_loss(body, status, error, 0.0)
        if event.fds:
            self._stopping = asyncio.create_task(self._take_over(event))

    def _report_loss(
        self, report: dict[str, Any], status: ExecStatus, error: str, seconds: float
    ) -> ExecResult:
        ends = self._family.settings.after_timeout == "end"
        follows = _ENDED if ends else _RESTORED if "life" in report else _FRESH
        result = ExecResult(status=status, error=f"{error}; {follows}")
        if ends:
            self._over = result
        return replace(
            result,
            stdout=report.get("stdout", ""),
            stderr=report.get("stderr", ""),
            truncated=bool(report.get("truncated")),
            seconds=seconds,
        )
