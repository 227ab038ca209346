"""Part of a server that a trajectory holds: a connection of its own, or a share of a common one."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from agentrl.errors import ForkUnsupported, ToolError, ToolFailure
from agentrl.message import Content
from agentrl.runtime.json_limits import JsonLimitError
from agentrl.runtime.scope import shared
from agentrl.tool import ToolContext, given_tool
from agentrl_tools.mcp.connection import McpConnection, McpServer
from agentrl_tools.mcp.result import render_content


@dataclass(frozen=True, slots=True)
class _Call:
    tool: str
    arguments: Mapping[str, Any]
    answer: Content
    is_error: bool


class McpInstance:
    """The state behind a server's tools; one subclass per server has those tools as methods."""

    source: ClassVar[McpServer]

    def __init__(self) -> None:
        self._own: McpConnection | None = None
        self._shared: SharedServer | None = None
        self._context: ToolContext | None = None
        self._calls: list[_Call] = []

    async def open(self, context: ToolContext) -> None:
        """Connect, or join the connection that the run shares."""
        self._context = context
        source = self.source
        if source.scope == "process":

            async def connect() -> SharedServer:
                return SharedServer(source, await McpConnection.open(source))

            self._shared = await shared(source.key, connect)
        if self._shared is None:
            self._own = await McpConnection.open(source)

    async def fork(self) -> Self:
        """Return a copy: on the shared server as it is, or on a new one after the same calls.

        `ForkUnsupported` unless the source says `fork="replay"`, and when the new server answers
        otherwise than the first one did.
        """
        if self.source.scope == "trajectory" and self.source.fork == "none":
            raise ForkUnsupported(
                f"MCP server {self.source.name} has state that cannot be copied; set "
                "fork='replay' to repeat its calls on a new server, or scope='process' if it keeps "
                "no state of a trajectory"
            )
        assert self._context is not None
        other = type(self)()
        await other.open(self._context)
        try:
            if self.source.scope == "trajectory":
                await other._replay(self._calls)
        except BaseException:
            await other.close()
            raise
        return other

    async def close(self) -> None:
        """Disconnect; a shared connection stays. Idempotent."""
        connection, self._own, self._shared = self._own, None, None
        if connection is not None:
            await connection.close()

    async def _call(self, tool: str, arguments: Mapping[str, Any]) -> _Call:
        from mcp.shared.exceptions import MCPError

        connection = self._own if self._shared is None else await self._shared.reconnect()
        if connection is None:
            raise ToolFailure(f"MCP server {self.source.name} is not open")
        try:
            result = await connection.call(tool, arguments)
        except MCPError as refusal:
            return _Call(tool, dict(arguments), str(refusal)[: self.source.result_chars], True)
        try:
            content = render_content(
                result, text_chars=self.source.result_chars, image_bytes=self.source.message_bytes
            )
        except JsonLimitError as error:
            raise ToolFailure(
                f"MCP server {self.source.name}: the structured content that {tool!r} answered: "
                f"{error}"
            ) from error
        return _Call(tool, dict(arguments), content, result.is_error)

    async def _replay(self, calls: list[_Call]) -> None:
        for call in calls:
            again = await self._call(call.tool, call.arguments)
            if again != call:
                raise ForkUnsupported(
                    f"MCP server {self.source.name}: a new server answered call "
                    f"{call.tool}({json.dumps(dict(call.arguments))}) differently from the first "
                    "one, so it cannot be forked by replay"
                )
            self._calls.append(again)

    async def _answer(self, tool: str, arguments: Mapping[str, Any]) -> Content:
        call = await self._call(tool, arguments)
        if self.source.fork == "replay":
            self._calls.append(call)
        if call.is_error:
            parts = [call.answer] if isinstance(call.answer, str) else call.answer
            raise ToolError("\n".join(part for part in parts if isinstance(part, str)))
        return call.answer


class SharedServer:
    """One connection for everybody in a run, made anew when the server has gone."""

    def __init__(self, source: McpServer, connection: McpConnection) -> None:
        self._source = source
        self._connection = connection
        self._lock = asyncio.Lock()

    async def reconnect(self) -> McpConnection:
        """Return a connection that is open."""
        async with self._lock:
            if not self._connection.is_open:
                await self._connection.close()
                self._connection = await McpConnection.open(self._source)
            return self._connection

    async def close(self) -> None:
        """Disconnect. Idempotent."""
        await self._connection.close()


def make_method(tool: str, schema: Mapping[str, Any]) -> Callable[..., Awaitable[Content]]:
    """Return a method that calls `tool`, marked as a tool with this schema."""

    async def call(self: McpInstance, /, **arguments: Any) -> Content:
        return await self._answer(tool, arguments)  # pyright: ignore[reportPrivateUsage]

    return given_tool(call, schema)
