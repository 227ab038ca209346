"""Arguments of a call as its tool's schema types them.

Some models write every argument as text (`agentrl.chat.dialects.tagged_values`), so that `5` may be
a text or a number. The tool's schema tells which.
"""

from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import unquote

from agentrl.runtime.json_limits import JsonLimitError, read_json

_CONSTANTS = {"true": True, "false": False, "null": None, "none": None}
_DEPTH = 8
"""Levels of alternatives within alternatives that are read."""
_ALTERNATIVES = ("anyOf", "oneOf", "allOf")
_KINDS: dict[str, type | tuple[type, ...]] = {
    "string": str,
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
    root = _as_mapping(parameters)
    properties = {
        **_as_mapping(_find(root, root.get("$ref")).get("properties")),
        **_as_mapping(root.get("properties")),
    }
    return {
        key: _type_value(value, _types_of(properties.get(key), root, set()))
        for key, value in arguments.items()
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


def _types_of(
    schema: Any, root: Mapping[str, Any], seen: set[str], depth: int = 0
) -> frozenset[str]:
    """Return the types that a schema names, those of its alternatives and of what it refers to
    among them. `seen` are the references that were read."""
    if depth > _DEPTH:
        return frozenset()
    fields = _as_mapping(schema)
    named = fields.get("type")
    types = {name for name in (named, *_as_list(named)) if isinstance(name, str)}
    if fields.get("nullable") is True:
        types.add("null")
    values: list[Any] = [fields["const"]] if "const" in fields else []
    values += _as_list(fields.get("enum"))
    types |= {name for value in values for name in _KINDS if _is_kind(value, name)}
    alternatives = [one for key in _ALTERNATIVES for one in _as_list(fields.get(key))]
    reference = fields.get("$ref")
    if isinstance(reference, str) and reference not in seen:
        seen.add(reference)
        alternatives.append(_find(root, reference))
    for one in alternatives:
        types |= _types_of(one, root, seen, depth + 1)
    return frozenset(types)


def _find(root: Mapping[str, Any], reference: Any) -> Mapping[str, Any]:
    """Return the schema that a reference such as `#/$defs/NAME` names, empty without one."""
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return {}
    found = root
    for key in unquote(reference[2:]).split("/"):
        found = _as_mapping(found.get(key.replace("~1", "/").replace("~0", "~")))
    return found


def _as_list(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def _as_mapping(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
