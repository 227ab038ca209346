"""One session as the host sees it: the `Sandbox` that tools and environments hold."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Self

from agentrl.errors import ForkUnsupported, SandboxError
from agentrl.sandbox import ExecResult, Limits
from agentrl_sandbox.channel import Channel
from agentrl_sandbox.inside.frames import START_S, Frame

GRACE_S = 5.0
"""How long a keeper may take beyond a cell's own deadline before it counts as gone."""
_OS_ERRORS: dict[str, type[OSError]] = {
    kind.__name__: kind
    for kind in (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
}


class Family:
    """A channel and how many sessions (one opened, the others its forks) still use it."""

    def __init__(self, channel: Channel, limits: Limits) -> None:
        self.channel = channel
        self.limits = limits
        self.members = 1


class Session:
    """A persistent interpreter and a private directory inside the isolation.

    Requests to one session are served one after the other. `timeout`, `oom`, `crash` and
    `violation` cost the session its names, never its files; so does cancelling an `exec`.
    """

    def __init__(
        self, family: Family, number: int, *, on_close: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self._family = family
        self._number = number
        self._on_close = on_close
        self._turn = asyncio.Lock()
        self._closed = False

    async def exec(self, code: str, *, timeout_s: float | None = None) -> ExecResult:
        """Run a cell; `SandboxError` when the sandbox is gone or does not answer."""
        wall_s = self._family.limits.wall_s
        timeout_s = wall_s if timeout_s is None else min(timeout_s, wall_s)
        body = {"op": "exec", "code": code, "timeout_s": timeout_s}
        reply = (await self._ask(body, within_s=timeout_s + GRACE_S)).body
        return ExecResult(
            status=reply["status"],
            stdout=reply.get("stdout", ""),
            stderr=reply.get("stderr", ""),
            value=reply["value"],
            error=reply["error"],
            truncated=reply["truncated"],
            seconds=reply["seconds"],
        )

    async def write(self, path: str, data: bytes) -> None:
        """Write a file below the session's directory, making parent directories."""
        limit_bytes = self._family.limits.file_bytes
        if len(data) > limit_bytes:
            raise OSError(
                f"{path!r} has {len(data)} bytes, over sandbox.limits.file_bytes={limit_bytes}"
            )
        _raise_os_error(await self._ask({"op": "write", "path": path}, data))

    async def read(self, path: str) -> bytes:
        """Return a regular file below the session's directory; links are not followed."""
        reply = await self._ask({"op": "read", "path": path})
        _raise_os_error(reply)
        return reply.blob

    async def fork(self, *, keep_rng: bool = False) -> Self:
        """Return a copy: names, directory and working directory.

        The copy draws other random numbers from `random` and `numpy.random`, unless `keep_rng`.
        Open files share their offset with the original; other processes of the session are not
        copied. `ForkUnsupported` while the interpreter runs more than one thread.
        """
        body = {"op": "fork", "keep_rng": keep_rng}
        reply = (await self._ask(body, within_s=START_S + GRACE_S)).body
        if "unsupported" in reply:
            raise ForkUnsupported(f"this session cannot be forked now: {reply['unsupported']}")
        self._family.members += 1
        return type(self)(self._family, reply["session"], on_close=self._on_close)

    async def close(self) -> None:
        """End every process of the session and delete its directory. Idempotent."""
        if self._closed:
            return
        self._closed = True
        channel = self._family.channel
        self._family.members -= 1
        try:
            if not channel.ended:
                body = {"op": "close", "session": self._number}
                await channel.ask(body, within_s=START_S)
        except SandboxError:
            channel.close()  # gone already, or stuck: without its channel a keeper ends
        finally:
            if self._family.members == 0:
                channel.close()
                if self._on_close is not None:
                    await self._on_close()

    async def _ask(
        self, body: dict[str, Any], blob: bytes = b"", *, within_s: float = GRACE_S
    ) -> Frame:
        async with self._turn:
            if self._closed:
                raise SandboxError("this session is closed; open another one")
            try:
                body = {**body, "session": self._number}
                reply = await self._family.channel.ask(body, blob, within_s=within_s)
            except SandboxError:
                self._family.channel.close()  # never reused after a missed deadline
                raise
        if "gone" in reply.body:
            raise SandboxError(reply.body["gone"])
        return reply


def _raise_os_error(reply: Frame) -> None:
    if (kind := reply.body.get("os_error")) is not None:
        raise _OS_ERRORS.get(kind, OSError)(reply.body["text"])
