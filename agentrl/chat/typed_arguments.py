"""Arguments that a dialect writes as text, as the schemas of the tools want them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from agentrl.chat.call_json import CALL_LIMITS
from agentrl.env import Action, ToolSchema
from agentrl.message import ToolCall
from agentrl.runtime.json_limits import JsonLimitError, check_json, parse_json

_CONSTANTS = {"true": True, "false": False, "null": None, "none": None}
_OTHERS = {
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "array": list,
    "object": dict,
    "null": type(None),
}


def type_calls(
    action: Action, tools: Sequence[ToolSchema], *, write_value: Callable[[Any], str]
) -> Action:
    """Return an action whose arguments have the types that the tools' schemas name.

    A value becomes the text it was read from where the schema takes text, and a text becomes the
    value that it writes where it takes none. What fits no schema stays as it is.
    """
    parameters = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    calls = [
        replace(call, arguments=_type_arguments(call, parameters.get(call.name), write_value))
        for call in action.tool_calls
    ]
    return replace(action, tool_calls=tuple(calls))


def _type_arguments(
    call: ToolCall, schema: Any, write_value: Callable[[Any], str]
) -> Mapping[str, Any]:
    known = _mapping(_mapping(schema).get("properties"))
    return {
        key: _type_value(value, _types(known.get(key)), write_value)
        for key, value in call.arguments.items()
    }


def _type_value(value: Any, types: frozenset[str], write_value: Callable[[Any], str]) -> Any:
    if not types:
        return value
    if "string" in types:
        kept = value is None and "null" in types
        return value if kept or isinstance(value, str) else write_value(value)
    if not isinstance(value, str):
        return value
    read = _read_text(value)
    accepted = any(isinstance(read, _OTHERS[name]) for name in types & _OTHERS.keys())
    return read if accepted else value


def _read_text(text: str) -> Any:
    stripped = text.strip()
    if stripped.lower() in _CONSTANTS:
        return _CONSTANTS[stripped.lower()]
    try:
        value, end = parse_json(stripped, 0, CALL_LIMITS)
        check_json(value, CALL_LIMITS)
    except JsonLimitError:
        return text
    return value if end == len(stripped) else text


def _types(schema: Any) -> frozenset[str]:
    """Return the types that a schema names, those of its alternatives among them."""
    fields = _mapping(schema)
    named = fields.get("type")
    types = {named} if isinstance(named, str) else set[str]()
    if isinstance(named, list):
        types |= {name for name in cast("list[Any]", named) if isinstance(name, str)}
    for key in ("anyOf", "oneOf"):
        alternatives = fields.get(key)
        if isinstance(alternatives, list):
            for alternative in cast("list[Any]", alternatives):
                types |= _types(alternative)
    enum = fields.get("enum")
    if isinstance(enum, list) and any(isinstance(one, str) for one in cast("list[Any]", enum)):
        types.add("string")
    return frozenset(types)


def _mapping(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
