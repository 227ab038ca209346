"""A problem's metadata as JSON and back: tasks travel, and verifiers tell tuples from lists.

JSON has no tuples, no sets and no keys but text. Each is written as an object with one reserved
key, so that what comes back equals what went in.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any, cast

_TUPLE, _SET, _PAIRS = "$tuple", "$set", "$pairs"


def to_json(value: Any) -> Any:
    """Return `value` in JSON's types.

    NumPy scalars become Python's, members of enums their value; anything else unknown to JSON
    becomes its `repr`, because no verifier reads it.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, list):
        return [to_json(item) for item in cast("list[Any]", value)]
    if isinstance(value, tuple):
        return {_TUPLE: [to_json(item) for item in cast("tuple[Any, ...]", value)]}
    if isinstance(value, set | frozenset):
        items = [to_json(item) for item in cast("set[Any]", value)]
        return {_SET: sorted(items, key=repr)}
    if isinstance(value, Mapping):
        return _mapping_to_json(cast("Mapping[Any, Any]", value))
    return _scalar(value)


def from_json(value: Any) -> Any:
    """Return the value that `to_json` was given; every call builds a fresh one."""
    if isinstance(value, list):
        return [from_json(item) for item in cast("list[Any]", value)]
    if not isinstance(value, Mapping):
        return value
    record = cast("Mapping[str, Any]", value)
    match tuple(record):
        case (key,) if key == _TUPLE:
            return tuple(from_json(item) for item in record[key])
        case (key,) if key == _SET:
            return {from_json(item) for item in record[key]}
        case (key,) if key == _PAIRS:
            return {from_json(k): from_json(v) for k, v in record[key]}
        case _:
            return {key: from_json(item) for key, item in record.items()}


def _mapping_to_json(value: Mapping[Any, Any]) -> dict[str, Any]:
    plain = all(type(key) is str and not key.startswith("$") for key in value)
    if plain:
        return {key: to_json(item) for key, item in value.items()}
    return {_PAIRS: [[to_json(key), to_json(item)] for key, item in value.items()]}


def _scalar(value: Any) -> Any:
    if hasattr(value, "dtype") and hasattr(value, "item"):
        return to_json(value.item())
    if isinstance(value, Enum):
        return to_json(value.value)
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    return repr(value)
