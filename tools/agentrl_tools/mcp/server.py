"""Settings of one MCP server."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from agentrl.errors import ConfigError


@dataclass(frozen=True, eq=False, kw_only=True)
class McpServer:
    """The settings of one server."""

    command: tuple[str, ...]
    url: str | None
    allow: tuple[str, ...]
    name: str
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
        return json.dumps({k: v for k, v in vars(self).items() if k != "_asked"}, sort_keys=True)

    @property
    def label(self) -> str:
        """Return the server in a word, for errors and before names that clash."""
        return self.name

    def build_env(self) -> dict[str, str]:
        """Return the variables of a server's process."""
        return {name: variable(name) for name in self.pass_env} | dict(self.env)

    def build_headers(self) -> dict[str, str]:
        """Return the headers of every request."""
        return {name: variable(of) for name, of in self.headers_from.items()} | dict(self.headers)


def variable(name: str) -> str:
    """Return a variable of our own environment; `ConfigError` when there is none."""
    if name not in os.environ:
        raise ConfigError(
            f"the variable {name} is to be passed to an MCP server but is not set; set it, or do "
            "not pass it"
        )
    return os.environ[name]
