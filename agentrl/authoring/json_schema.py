"""The JSON schema of a tool's parameters, which others wrote: its first fault, with its path."""

import json
from collections.abc import Mapping
from typing import Any, cast

_TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
_SCHEMA_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SCHEMA_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_SCHEMAS = ("items", "additionalProperties", "not", "contains")
_ELSEWHERE = ("$ref", *_SCHEMA_LISTS, "if", "patternProperties")
"""Keys of a schema whose properties may be named elsewhere."""
_DEPTH = 32
"""Levels of schemas within schemas that are looked at."""


def find_tool_fault(tool: Mapping[str, Any]) -> str | None:
    """Return the fault of a tool whose parameters are no JSON schema of an object; None if none.

    A tool without parameters has no fault. Of a schema, the keys that say what an argument is are
    looked at; any other key may be there.
    """
    function: Any = tool.get("function", tool)
    if not isinstance(function, Mapping):
        return f"the function of a tool is {_show(function)}; give a mapping with name, parameters"
    fields = cast("Mapping[str, Any]", function)
    parameters = fields.get("parameters")
    if parameters is None:
        return None
    fault = _find_parameters_fault(parameters)
    return None if fault is None else f"tool {fields.get('name')!r}: {fault}"


def _find_parameters_fault(parameters: Any) -> str | None:
    if not isinstance(parameters, Mapping):
        return f'parameters is {_show(parameters)}; give a JSON schema such as {{"type": "object"}}'
    schema = cast("Mapping[str, Any]", parameters)
    if schema.get("type", "object") not in ("object", ["object"]):
        return f"parameters.type is {_show(schema['type'])}; the arguments of a call are an object"
    if (fault := _find_schema_fault(schema, "parameters", 0)) is not None:
        return fault
    properties = schema.get("properties")
    if properties is None or any(key in schema for key in _ELSEWHERE):
        return None
    for name in schema.get("required", ()):
        if name not in properties:
            names = ", ".join(map(repr, properties)) or "none"
            return (
                f"parameters.required names {name!r}, but the properties are {names}; add it to "
                "properties, or remove it from required"
            )
    return None


def _find_schema_fault(schema: Any, path: str, depth: int) -> str | None:
    """Return the first fault of a schema or of those within it; None where there is none."""
    if isinstance(schema, bool):
        return None
    if not isinstance(schema, Mapping):
        return f"{path} is {_show(schema)}; give a JSON schema"
    if depth > _DEPTH:
        return None
    fields = cast("Mapping[str, Any]", schema)
    if (fault := _find_field_fault(fields, path)) is not None:
        return fault
    inner: list[tuple[str, Any]] = []
    for key in _SCHEMA_MAPS:
        inner += [(f"{path}.{key}.{name}", value) for name, value in fields.get(key, {}).items()]
    for key in _SCHEMA_LISTS:
        inner += [(f"{path}.{key}[{at}]", value) for at, value in enumerate(fields.get(key, ()))]
    for key in _SCHEMAS:
        if isinstance(value := fields.get(key, True), list):  # of the items of older drafts
            each = enumerate(cast("list[Any]", value))
            inner += [(f"{path}.{key}[{at}]", one) for at, one in each]
        else:
            inner.append((f"{path}.{key}", value))
    faults = (_find_schema_fault(value, where, depth + 1) for where, value in inner)
    return next((fault for fault in faults if fault is not None), None)


def _find_field_fault(fields: Mapping[str, Any], path: str) -> str | None:
    """Return the fault of a schema's own keys; None where there is none."""
    types: Any = fields.get("type", "object")
    listed = cast("list[Any]", types) if isinstance(types, list) and types else [types]
    for name in listed:
        if name not in _TYPES:
            return f"{path}.type is {_show(name)}; give one of {', '.join(_TYPES)}"
    for key in _SCHEMA_MAPS:
        if not isinstance(value := fields.get(key, {}), Mapping):
            return f"{path}.{key} is {_show(value)}; give schemas by name"
    for key in (*_SCHEMA_LISTS, "enum"):
        if not isinstance(value := fields.get(key, []), list | tuple):
            return f"{path}.{key} is {_show(value)}; give a list"
    required: Any = fields.get("required", [])
    if not isinstance(required, list | tuple) or not all(
        isinstance(name, str) for name in cast("list[Any]", required)
    ):
        return f"{path}.required is {_show(required)}; give a list of names"
    return None


def _show(value: object) -> str:
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."
