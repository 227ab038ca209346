"""Tools of an MCP server, as a tool environment takes them."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from agentrl.errors import ConfigError
from agentrl.runtime.scope import shared
from agentrl.tool import LateTools, ToolSource
from agentrl_tools.mcp.connection import McpConnection, McpServer
from agentrl_tools.mcp.instance import McpInstance, make_method

if TYPE_CHECKING:
    from mcp_types import Tool

NAME_CHARS = 64


@dataclass(frozen=True, eq=False, kw_only=True)
class McpTools(McpServer, LateTools):
    """A server's tools, which are listed when an episode first needs them. See `mcp_tools`."""

    _listed: "list[_ListedTools]" = field(default_factory=list["_ListedTools"], repr=False)

    async def known(self, taken: Collection[str]) -> ToolSource:
        """Return a class whose instances hold the server's tools; asks the server once."""
        # In a run, whoever comes first asks, and the others wait for the answer.
        listing = await shared(("tools of", self.key), self._list_tools)
        if listing is None:
            if not self._listed:
                self._listed.append(await self._list_tools())
            listing = self._listed[0]
        return listing.make_kind(frozenset({*taken, *dir(McpInstance)}))

    async def _list_tools(self) -> "_ListedTools":
        connection = await McpConnection.open(self)
        try:
            return _ListedTools(self, select_allowed(await connection.tools(), self))
        finally:
            await connection.close()


class _ListedTools:
    """Tools that a server listed, and the classes made of them."""

    def __init__(self, source: McpTools, tools: "tuple[Tool, ...]") -> None:
        self._source = source
        self._tools = tools
        self._kinds: dict[tuple[str, ...], type] = {}

    def make_kind(self, reserved: frozenset[str]) -> type:
        """Return a class with the tools as methods, none of them called as in `reserved`."""
        tools = name_tools(self._tools, self._source.name, reserved)
        if (names := tuple(tools)) not in self._kinds:
            methods = {
                call_name: make_method(tool.name, build_schema(call_name, tool, self._source))
                for call_name, tool in tools.items()
            }
            name = f"McpTools_{self._source.name}"
            self._kinds[names] = type(name, (McpInstance,), {"source": self._source, **methods})
        return self._kinds[names]

    async def close(self) -> None:
        """Hold nothing."""


def mcp_tools(
    *,
    command: Sequence[str] = (),
    url: str | None = None,
    allow: Sequence[str] = (),
    name: str = "",
    scope: str = "trajectory",
    fork: str = "none",
    timeout_s: float = 30.0,
    connect_timeout_s: float = 20.0,
    env: Mapping[str, str] | None = None,
    pass_env: Sequence[str] = (),
    headers: Mapping[str, str] | None = None,
    headers_from: Mapping[str, str] | None = None,
    schema_bytes: int = 16_384,
    result_chars: int = 65_536,
    message_bytes: int = 2**24,
) -> McpTools:
    """Return the tools of one MCP server, for `tools=[...]` of a tool environment.

    Either `command` starts a server that is talked to over stdio, or `url` is where one listens
    (streamable HTTP). `allow` names the tools to take; all without. `scope` says whether every
    trajectory has a server of its own or the run has one; `fork` how a server of a trajectory is
    copied. `timeout_s` bounds every call, `connect_timeout_s` the start. A started server sees the
    variables of `env` and, of ours, those named in `pass_env`; `headers_from` maps a header to the
    variable of ours that holds it. `schema_bytes` bounds the schema of a tool, `result_chars` what
    the model reads of a result, `message_bytes` what the server may send at once.

    Nothing is started here. Raises `ConfigError` for settings that contradict each other.
    """
    if isinstance(command, str) or bool(command) == (url is not None):
        raise ConfigError(
            f"an MCP server has command={command!r} and url={url!r}; give either `command`, a "
            "list of words, or `url`, but not both"
        )
    if url is not None and (urlsplit(url).scheme not in ("http", "https") or env or pass_env):
        raise ConfigError(
            f"MCP server {url!r}: the url must be http or https, and takes no env; pass secrets of "
            "an HTTP server with `headers` or `headers_from`"
        )
    if command and (headers or headers_from):
        raise ConfigError("an MCP server started by a command takes no headers; use `env`")
    if scope not in ("trajectory", "process") or fork not in ("none", "replay"):
        raise ConfigError(
            f"an MCP server has scope={scope!r} and fork={fork!r}; scope must be 'trajectory' or "
            "'process', and fork 'none' or 'replay'"
        )
    numbers = {"timeout_s": timeout_s, "connect_timeout_s": connect_timeout_s}
    numbers |= {"schema_bytes": schema_bytes, "result_chars": result_chars}
    for key, number in (numbers | {"message_bytes": message_bytes}).items():
        if not number > 0:
            raise ConfigError(f"an MCP server has {key}={number}; it must be greater than 0")
    return McpTools(
        command=tuple(command),
        url=url,
        allow=tuple(allow),
        name=clean_name(
            name or (urlsplit(url).hostname or "" if url else PurePath(command[0]).stem)
        ),
        scope=scope,
        fork=fork,
        timeout_s=timeout_s,
        connect_timeout_s=connect_timeout_s,
        env=dict(env or {}),
        pass_env=tuple(pass_env),
        headers=dict(headers or {}),
        headers_from=dict(headers_from or {}),
        schema_bytes=schema_bytes,
        result_chars=result_chars,
        message_bytes=message_bytes,
    )


def select_allowed(tools: "Sequence[Tool]", source: McpTools) -> "tuple[Tool, ...]":
    """Return the tools that are allowed, in the server's order.

    Raises `ConfigError` when a named tool is not there, or none is.
    """
    listed = [tool.name for tool in tools]
    if missing := [name for name in source.allow if name not in listed]:
        raise ConfigError(
            f"MCP server {source.name} has no tool {missing[0]!r}; it has {listed}; fix `allow`"
        )
    selection = tuple(t for t in tools if not source.allow or t.name in source.allow)
    if not selection:
        raise ConfigError(f"MCP server {source.name} lists no tools; remove it")
    return selection


def name_tools(tools: "Sequence[Tool]", label: str, reserved: Collection[str]) -> "dict[str, Tool]":
    """Return the tools by the name the model calls them by.

    That is the server's own name in letters a model may write. One that is in `reserved`, or that
    two tools of the server share, has the server's label before it, then a number after it.
    """
    tools_by_name: dict[str, Tool] = {}
    for tool in tools:
        call_name = clean_name(tool.name)
        if call_name in reserved or call_name in tools_by_name:
            call_name = clean_name(f"{label}_{tool.name}")
        stem, number = call_name, 2
        while call_name in reserved or call_name in tools_by_name:
            call_name = f"{stem[: NAME_CHARS - 4]}_{number}"
            number += 1
        tools_by_name[call_name] = tool
    return tools_by_name


def clean_name(name: str) -> str:
    """Return a name of letters, digits, `_` and `-` that begins with no digit, at most 64."""
    text = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:NAME_CHARS] or "server"
    return text if text[0].isalpha() or text[0] == "_" else f"_{text}"[:NAME_CHARS]


def build_schema(call_name: str, tool: "Tool", source: McpTools) -> dict[str, Any]:
    """Return the schema of a tool as the model reads it; `ConfigError` for one that is too long."""
    parameters = {"type": "object", "properties": {}} | tool.input_schema
    description = tool.description or tool.title or tool.name
    function = {"name": call_name, "description": description, "parameters": parameters}
    size = len(json.dumps(function).encode())
    if size > source.schema_bytes:
        raise ConfigError(
            f"MCP server {source.name}: the schema of {tool.name!r} has {size} bytes, but "
            f"schema_bytes={source.schema_bytes}; remove the tool from `allow`, or raise the limit"
        )
    return {"type": "function", "function": function}
