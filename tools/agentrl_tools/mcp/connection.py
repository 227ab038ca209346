"""One server: its settings, and a connection, in a task of its own as its parts require."""

import asyncio
import importlib
import json
import os
from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from agentrl.errors import SHOWN_CHARS, AgentrlError, ConfigError, ToolFailure
from agentrl.runtime.threads import run_in_thread
from agentrl_sandbox.host_process import HostProcess

if TYPE_CHECKING:
    from mcp import Client
    from mcp_types import CallToolResult, Tool

T = TypeVar("T")
PAGES = 100
"""Of a list of tools: a server that always has another one must not keep us for ever."""
LAST_CHARS = 400
"""Of what a dead server wrote on stderr last."""
_CLOSE_S = 5.0
_EXIT_S = 0.5


@dataclass(frozen=True, eq=False, kw_only=True)
class McpServer:
    """The settings of one server."""

    command: tuple[str, ...]
    url: str | None
    allow: tuple[str, ...]
    name: str
    """In errors, and before names of tools that clash."""
    scope: Literal["trajectory", "process"]
    fork: Literal["none", "replay"]
    timeout_s: float
    connect_timeout_s: float
    env: Mapping[str, str] = field(repr=False)
    pass_env: tuple[str, ...]
    headers: Mapping[str, str] = field(repr=False)
    headers_from: Mapping[str, str]
    schema_bytes: int
    result_chars: int
    message_bytes: int

    @property
    def key(self) -> str:
        """Return all settings as text: equal ones share what a run shares."""
        return json.dumps({k: v for k, v in vars(self).items() if k != "_listed"}, sort_keys=True)

    def build_env(self) -> dict[str, str]:
        """Return the variables of a server's process."""
        return {name: read_variable(name) for name in self.pass_env} | dict(self.env)

    def build_headers(self) -> dict[str, str]:
        """Return the headers of every request."""
        return {
            name: read_variable(variable) for name, variable in self.headers_from.items()
        } | dict(self.headers)


def read_variable(name: str) -> str:
    """Return a variable of our own environment; `ConfigError` when there is none."""
    if name not in os.environ:
        raise ConfigError(
            f"the variable {name} is to be passed to an MCP server but is not set; set it, or do "
            "not pass it"
        )
    return os.environ[name]


class McpConnection:
    """A client of one server. Made by `open`."""

    def __init__(self, source: McpServer) -> None:
        self._source = source
        self._process: HostProcess | None = None
        self._client: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._stop = asyncio.Event()
        self._broken = ""
        self._life = asyncio.create_task(self._live(), name=f"agentrl-mcp {source.name}")

    @classmethod
    async def open(cls, source: McpServer) -> Self:
        """Connect within `source.connect_timeout_s`; `ToolFailure` when that fails.

        Raises `ConfigError` for a command that cannot be started.
        """
        connection = cls(source)
        try:
            async with asyncio.timeout(source.connect_timeout_s):
                await asyncio.shield(connection._client)
        except BaseException as error:
            await connection.close()
            if isinstance(error, TimeoutError):
                late = f"no connection within {source.connect_timeout_s:g} s"
                raise connection._failure(late) from None
            if isinstance(error, AgentrlError) or not isinstance(error, Exception):
                raise
            raise connection._failure(f"it cannot be connected: {_describe(error)}") from error
        return connection

    @property
    def is_open(self) -> bool:
        """Return whether calls can be made."""
        ended = self._process is not None and self._process.returncode is not None
        return not (self._broken or self._stop.is_set() or self._life.done() or ended)

    async def tools(self) -> "list[Tool]":
        """Return every tool the server lists; `ToolFailure` when it does not answer."""
        tools: list[Tool] = []
        cursor: str | None = None
        for _ in range(PAGES):
            client = self._get_client()
            page = await self._answer(client.list_tools(cursor=cursor), "listing its tools")
            tools += page.tools
            cursor = page.next_cursor
            if not cursor:
                return tools
        raise self._failure(f"its list of tools has more than {PAGES} pages")

    async def call(self, name: str, arguments: Mapping[str, Any]) -> "CallToolResult":
        """Return the answer of a tool, errors that the tool reports included.

        A deadline missed, or a caller cancelled, is told to the server. Raises `MCPError` where the
        server refuses the arguments, and `ToolFailure` for anything else that goes wrong.
        """
        called = self._get_client().call_tool(name, dict(arguments))
        return await self._answer(called, f"calling {name!r}")

    async def close(self) -> None:
        """Disconnect and end the server's process, if it is ours. Idempotent."""
        self._stop.set()
        if self._client.cancel():
            self._life.cancel()
        finished_tasks, _ = await asyncio.wait([self._life], timeout=_CLOSE_S)
        if not finished_tasks:
            self._life.cancel()
            await asyncio.wait([self._life])

    def _get_client(self) -> "Client":
        if not self.is_open:
            raise self._failure("it is gone")
        return self._client.result()

    async def _answer(self, answer: Awaitable[T], what: str) -> T:
        from mcp.shared.exceptions import MCPError
        from mcp_types import CONNECTION_CLOSED, INVALID_PARAMS, INVALID_REQUEST

        try:
            async with asyncio.timeout(self._source.timeout_s):
                return await answer
        except TimeoutError:
            late = f"{what} took more than timeout_s={self._source.timeout_s:g}"
            raise self._failure(late) from None
        except MCPError as error:
            if error.code == INVALID_PARAMS:
                raise
            if error.code in (CONNECTION_CLOSED, INVALID_REQUEST):
                # The second is how a server over HTTP says that it does not know us any more.
                self._break(str(error))
            if self._process is not None and self._broken:
                await self._process.wait_end(_EXIT_S)  # its code says more than its silence
            raise self._failure(f"{what}: error {error.code}: {error}") from error
        except Exception as error:
            raise self._failure(f"{what}: {_describe(error)}") from error

    def _break(self, why: str) -> None:
        self._broken = self._broken or why[:SHOWN_CHARS]

    def _failure(self, what: str) -> ToolFailure:
        what = what[:SHOWN_CHARS]
        parts = [what, "" if self._broken in what else self._broken]
        if self._process is not None and self._process.returncode is not None:
            parts.append(f"it ended with code {self._process.returncode}")
            parts.append(" ".join(self._process.last_words.split())[-LAST_CHARS:])
        return ToolFailure(f"MCP server {self._source.name}: {'; '.join(filter(None, parts))}")

    async def _live(self) -> None:
        # It takes half a second of processor time, which the loop does not have.
        await run_in_thread(importlib.import_module, "mcp")
        from mcp import Client

        try:
            async with self._transport() as transport, Client(transport) as client:
                if not self._client.done():
                    self._client.set_result(client)
                await self._stop.wait()
        except Exception as error:  # noqa: BLE001 - handed to whoever opens, or known by its calls
            if not self._client.done():
                self._client.set_exception(error)

    @asynccontextmanager
    async def _transport(self) -> AsyncGenerator[Any]:
        source = self._source
        if source.url is not None:
            from mcp.client.streamable_http import streamable_http_client
            from mcp.shared._httpx_utils import create_mcp_http_client

            async with create_mcp_http_client(headers=source.build_headers()) as http:
                yield streamable_http_client(
                    source.url, http_client=http, max_sse_event_size=source.message_bytes
                )
            return
        from agentrl_tools.mcp.stdio import open_transport

        self._process = await HostProcess.start(
            source.command, env=source.build_env(), line_bytes=source.message_bytes
        )
        try:
            yield open_transport(self._process, self._break)
        finally:
            await self._process.close()


def _describe(error: BaseException) -> str:
    """Return an error in a line; of a group, the first cause."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"
