"""Arguments of a call as its tool's schema types them.

Some models write every argument as text (`agentrl.chat.dialects.tagged_values`), so that `5` may be
a text or a number. The tool's schema tells which.
"""

from collections.abc import Mapping
from typing import Any, cast

from agentrl.runtime.json_limits import JsonLimitError, read_json

_CONSTANTS = {"true": True, "false": False, "null": None, "none": None}
_DEPTH = 8
"""Levels of alternatives within alternatives that are read."""
_KINDS: dict[str, type | tuple[type, ...]] = {
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "array": list,
    "object": dict,
    "null": type(None),
}


def type_arguments(arguments: Mapping[str, Any], parameters: Any) -> dict[str, Any]:
    """Return arguments with the types that the JSON schema `parameters` names.

    A text becomes the value that it writes where the schema takes that and no text. Everything else
    stays as it is.
    """
    properties = _as_mapping(_as_mapping(parameters).get("properties"))
    return {
        key: _type_value(value, _types_of(properties.get(key))) for key, value in arguments.items()
    }


def _type_value(value: Any, types: frozenset[str]) -> Any:
    if not types or "string" in types or not isinstance(value, str):
        return value
    read = _read_text(value.strip())
    return read if any(_is_kind(read, name) for name in types) else value


def _is_kind(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    return name in _KINDS and isinstance(value, _KINDS[name])


def _read_text(text: str) -> Any:
    if text.lower() in _CONSTANTS:
        return _CONSTANTS[text.lower()]
    try:
        return read_json(text)
    except JsonLimitError:
        return text


def _types_of(schema: Any, depth: int = 0) -> frozenset[str]:
    """Return the types that a schema names, those of its alternatives among them."""
    if depth > _DEPTH:
        return frozenset()
    fields = _as_mapping(schema)
    type_name = fields.get("type")
    types = {type_name} if isinstance(type_name, str) else set[str]()
    if fields.get("nullable") is True:
        types.add("null")
    for key in ("type", "anyOf", "oneOf", "enum"):
        listed = fields.get(key)
        for one in cast("list[Any]", listed) if isinstance(listed, list) else ():
            if key == "enum":
                types |= {"string"} if isinstance(one, str) else set()
            elif isinstance(one, str):
                types.add(one)
            else:
                types |= _types_of(one, depth + 1)
    return frozenset(types)


def _as_mapping(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
