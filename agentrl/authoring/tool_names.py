"""Tools by name, as a config gives them: `module:name`, or that with arguments."""

from collections.abc import Callable, Mapping
from typing import Any, cast

from agentrl.errors import ConfigError
from agentrl.runtime.imports import import_callable
from agentrl.tool import LateTools, ToolSource

_SOURCE = "source"


def load_tool(given: ToolSource | LateTools | str | Mapping[str, Any]) -> ToolSource | LateTools:
    """Return the tools that a config names, or those given as they are.

    `"module:name"` is a function marked with `@tool` or a class with such methods;
    `{"source": "module:name", ...}` is what `name` returns for the other keys, which it is called
    with. Raises `ConfigError` for what cannot be imported and for arguments that do not fit.
    """
    if isinstance(given, str):
        return import_callable(given)
    if not isinstance(given, Mapping):
        return given
    settings = dict(cast("Mapping[str, Any]", given))
    source = settings.pop(_SOURCE, None)
    if not isinstance(source, str):
        raise ConfigError(
            f"a tool is given as {dict(given)}, without its source; add "
            '`source: "module:name"`, such as `source: agentrl_tools.mcp:mcp_tools`'
        )
    make = cast("Callable[..., ToolSource | LateTools]", import_callable(source))
    try:
        return make(**settings)
    except TypeError as error:
        raise ConfigError(f"tool {source} with {settings}: {error}") from error
