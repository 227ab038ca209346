"""JSON schemas of Python types, as chat templates show them to a model.

They are those of `transformers.utils.get_json_schema`, key by key and in the same order: models are
trained on prompts with them.
"""

import types
from collections.abc import Sequence
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin

Schema = dict[str, Any]

SCALARS: dict[object, str] = {
    int: "integer",
    float: "number",
    str: "string",
    bool: "boolean",
    type(None): "null",
}
CONTAINERS: dict[object, str] = {list: "array", tuple: "array", dict: "object"}


class UnsupportedTypeError(Exception):
    """A type has no JSON schema; the text says which type, and why."""


def type_schema(hint: Any) -> Schema:
    """Return the JSON schema of a type. Raises `UnsupportedTypeError`."""
    origin, arguments = get_origin(hint), get_args(hint)
    if not arguments:
        return _bare_schema(origin or hint)
    if origin is Annotated:
        return type_schema(arguments[0])
    if origin in (Union, types.UnionType):
        return _union_schema(arguments)
    if origin is Literal:
        return _choice_schema(arguments, of=hint)
    if origin is list:
        return {"type": "array", "items": type_schema(arguments[0])}
    if origin is tuple:
        return _tuple_schema(arguments, of=hint)
    if origin is dict:
        return {"type": "object", "additionalProperties": type_schema(arguments[1])}
    raise UnsupportedTypeError(f"the type {hint} has no JSON schema.")


def _bare_schema(hint: Any) -> Schema:
    if hint is Any:
        return {}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _choice_schema([member.value for member in hint], of=hint)
    name = (SCALARS | CONTAINERS).get(hint)
    if name is None:
        raise UnsupportedTypeError(f"the type {hint!r} has no JSON schema.")
    return {"type": name}


def _choice_schema(values: Sequence[object], *, of: object) -> Schema:
    """Return the schema of the listed values of a `Literal` or an `Enum`."""
    odd = [value for value in values if type(value) not in SCALARS]
    if odd or not values:
        problem = f"the value {odd[0]!r}, which is no JSON scalar" if odd else "no value"
        raise UnsupportedTypeError(f"the type {of} has {problem}.")
    names = list(dict.fromkeys(SCALARS[type(value)] for value in values))
    return {"type": _one_or_all(names), "enum": [*values]}


def _union_schema(members: Sequence[Any]) -> Schema:
    schemas = [type_schema(member) for member in members if member is not type(None)]
    plain = all(schema.keys() == {"type"} and type(schema["type"]) is str for schema in schemas)
    if len(schemas) == 1:
        schema = schemas[0]
    elif plain:
        schema: Schema = {"type": _one_or_all(sorted({schema["type"] for schema in schemas}))}
    else:
        schema = {"anyOf": schemas}
    return {**schema, "nullable": True} if type(None) in members else schema


def _tuple_schema(members: Sequence[Any], *, of: object) -> Schema:
    if len(members) < 2 or ... in members:
        raise UnsupportedTypeError(f"the type {of} is a tuple of no fixed length above 1.")
    return {"type": "array", "prefixItems": [type_schema(member) for member in members]}


def _one_or_all(names: list[str]) -> str | list[str]:
    return names[0] if len(names) == 1 else names
