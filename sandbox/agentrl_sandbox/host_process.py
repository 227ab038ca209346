"""A program of the host that is talked to in lines, and that ends with this process.

Not for what a model wrote: it runs with this user's rights. It is for programs the user named, such
as a server of tools. It sees the variables it is given and no others, its output is bounded, and it
is on a lease, so that a reaper ends it and all it started when we are killed.
"""

import asyncio
import contextlib
import math
import os
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from agentrl.errors import ConfigError
from agentrl.runtime.threads import run_in_thread
from agentrl_sandbox.lease import ResourceLease, new_mark

STDERR_BYTES = 2**16
_CHUNK_BYTES = 2**16
_SILENCE_S = 0.25
_POLL_S = 0.01
_END_S = 5.0


class LineTooLong(Exception):
    """The program wrote more bytes without a line break than its reader takes."""


class HostProcess:
    """One running program. Made by `start`; whoever made it closes it."""

    def __init__(
        self, process: asyncio.subprocess.Process, lease: ResourceLease, line_bytes: int
    ) -> None:
        self._process = process
        self._lease = lease
        self._line_bytes = line_bytes
        self._stderr = b""
        self._stderr_task = asyncio.create_task(self._read_stderr(), name="agentrl-host-stderr")
        self._ending: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path | None = None,
        line_bytes: int = 2**24,
    ) -> Self:
        """Start a program with exactly the variables of `env`; a line of it may be `line_bytes`.

        The program is looked for on our own PATH. Raises `ConfigError` when it cannot be started.
        """
        if not command:
            raise ConfigError("the command of a program is empty; give it as a list of words")
        program = shutil.which(command[0])
        if program is None:
            raise ConfigError(
                f"there is no program {command[0]!r} on the PATH; install it, or give its path"
            )
        lease = ResourceLease.take("process", new_mark())
        try:
            process = await asyncio.create_subprocess_exec(
                program,
                *command[1:],
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={**env, **lease.environ},
                cwd=cwd,
                limit=line_bytes,
                start_new_session=True,
            )
        except BaseException as error:
            lease.clear()
            if isinstance(error, OSError | ValueError):
                raise ConfigError(f"{command[0]!r} cannot be started: {error}") from error
            raise
        return cls(process, lease, line_bytes)

    @property
    def pid(self) -> int:
        """Return its process id."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Exit status, or None while it runs."""
        return self._process.returncode

    @property
    def last_words(self) -> str:
        """Return the end of what it wrote on stderr."""
        return self._stderr.decode(errors="replace").strip()

    async def write(self, line: bytes) -> None:
        """Send a line; `ConnectionError` when it reads no more."""
        assert self._process.stdin is not None
        if self._ending is not None or self._process.stdin.is_closing():
            raise BrokenPipeError("the program has ended, or is being ended")
        self._process.stdin.write(line.rstrip(b"\n") + b"\n")
        await self._process.stdin.drain()

    async def read(self) -> bytes | None:
        """Return the next line without its break, or None at the end of its output.

        What stands after the last line break is no line. Raises `LineTooLong`.
        """
        assert self._process.stdout is not None
        try:
            return (await self._process.stdout.readuntil(b"\n"))[:-1]
        except asyncio.IncompleteReadError:
            return None
        except asyncio.LimitOverrunError as error:
            raise LineTooLong(f"a line of more than {self._line_bytes} bytes") from error

    async def output(self, most_bytes: int) -> bytes:
        """Return the first bytes of all it writes until it ends; the rest is dropped.

        A process that it leaves behind may hold its output open: that is read no further.
        """
        assert self._process.stdout is not None
        data = bytearray()
        deadline_s, silences = math.inf, 0
        # Two silences, since a read that is cancelled late may leave its bytes to the next one.
        while silences < 2 and time.monotonic() < deadline_s:
            if (ended := self._process.returncode is not None) and deadline_s == math.inf:
                deadline_s = time.monotonic() + _END_S
            try:
                async with asyncio.timeout(_SILENCE_S):
                    chunk = await self._process.stdout.read(_CHUNK_BYTES)
            except TimeoutError:
                silences += ended
                continue
            if not chunk:
                break
            silences = 0
            data += chunk[: most_bytes - len(data)]
        return bytes(data)

    async def close(self, *, grace_s: float = 1.0) -> None:
        """Close its input, give it a moment to end, then kill it and all it started.

        Idempotent; goes on to the end when the caller is cancelled.
        """
        if self._ending is None:
            self._ending = asyncio.create_task(self._end(grace_s), name="agentrl-host-end")
        try:
            await asyncio.shield(self._ending)
        except asyncio.CancelledError:
            await asyncio.wait([self._ending])
            raise

    async def _end(self, grace_s: float) -> None:
        process = self._process
        assert process.stdin is not None
        try:
            process.stdin.close()
            if not await self.wait_end(grace_s):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            # Also what it left behind, under whatever process group.
            await run_in_thread(self._lease.clear)
            await self.wait_end(_END_S)
        finally:
            self._stderr_task.cancel()
            await asyncio.wait([self._stderr_task])
            # A survivor may hold the pipes open, and nothing public closes our ends.
            process._transport.close()  # pyright: ignore[reportPrivateUsage, reportUnknownMemberType, reportAttributeAccessIssue]

    async def wait_end(self, within_s: float) -> bool:
        """Return whether it ends in time; `Process.wait` would wait for its pipes, too."""
        deadline_s = time.monotonic() + within_s
        while self._process.returncode is None:
            if time.monotonic() > deadline_s:
                return False
            await asyncio.sleep(_POLL_S)
        return True

    async def _read_stderr(self) -> None:
        assert self._process.stderr is not None
        while chunk := await self._process.stderr.read(_CHUNK_BYTES):
            self._stderr = (self._stderr + chunk)[-STDERR_BYTES:]
