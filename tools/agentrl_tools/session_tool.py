"""Sandbox session that the tools of a trajectory share: opened once and forked once."""

import copy
from typing import Self

from agentrl.errors import ForkUnsupported, SandboxError, ToolError
from agentrl.sandbox import Sandbox
from agentrl.tool import ToolContext
from agentrl_sandbox import open_session


class SessionTool:
    """One sandboxed session per trajectory, under the sandbox settings in force at the first call.

    Tools that work on one session are base classes of one class, such as
    `class MyTools(Python, Shell)`: an instance has one session, however many tools it offers. A
    trajectory that calls none of them costs no session. What is added in a subclass is deep-copied
    at a fork.
    """

    needs = ("agentrl_sandbox.needs:find_missing_sandbox",)

    _is_open = False
    _session: Sandbox | None = None

    async def open(self, context: ToolContext) -> None:
        """Take calls from here on."""
        del context
        self._is_open = True

    async def fork(self) -> Self:
        """Return a copy with a forked session.

        `ForkUnsupported` while threads run in the session, or when a subclass holds what cannot be
        copied.
        """
        memo = {id(self._session): self._session}
        try:
            branch = copy.deepcopy(self, memo)
        except (TypeError, copy.Error) as error:
            raise ForkUnsupported(
                f"tool {type(self).__name__} holds something that copy.deepcopy cannot copy "
                f"({error}); add `async def fork(self)` that returns an independent copy"
            ) from error
        if self._session is not None:
            branch._session = await self._session.fork()
        return branch

    async def close(self) -> None:
        """Close the session. Idempotent."""
        self._is_open = False
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def session(self) -> Sandbox:
        """Return the session, opened at the first call; `SandboxError` when the tool is closed."""
        if not self._is_open:
            name = type(self).__name__
            raise SandboxError(f"the tool {name} is not open; open it, and use it before close")
        if self._session is None:
            self._session = await open_session()
        return self._session


def check_text(what: str, text: str) -> str:
    """Return text that files and programs can take; `ToolError` for NUL and lone surrogates."""
    if "\0" in text:
        raise ToolError(f"the {what} contains a NUL character; remove it")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        char = text[error.start]
        raise ToolError(
            f"the {what} contains {char!r} at {error.start}, half of a surrogate pair; write the "
            "whole character"
        ) from error
    return text
