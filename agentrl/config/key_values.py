"""Config keys with the values that can be listed, for shell completion.

They lie in a file beside this module, since the schema takes most of a second to import. After a
change of the schema, `python -m agentrl.config.key_values` writes it again.
"""

import json
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Literal, Union, get_args, get_origin

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

FILE = Path(__file__).with_suffix(".json")


def collect_key_values() -> dict[str, list[str]]:
    """Return every key that holds a value, with its listed values, or else its default."""
    from agentrl.config.run import RunConfig
    from agentrl.config.schema import keys

    values_of: dict[str, dict[str, None]] = {}
    for key in keys(RunConfig):
        if key.sections:
            # The key is a section, and `null` or the `name` in it is the value.
            if NoneType in get_args(key.field.annotation):
                values_of.setdefault(key.path, {})["null"] = None
            continue
        values = list_values(key.field.annotation) or _list_default(key.field)
        values_of.setdefault(key.path, {}).update(dict.fromkeys(values))
    return {path: list(values) for path, values in sorted(values_of.items())}


def list_values(annotation: object) -> list[str]:
    """Return the values of a type as they stand in an override; empty where they have no end."""
    if annotation is bool:
        return ["true", "false"]
    if get_origin(annotation) is Literal:
        return [str(value) for value in get_args(annotation)]
    if get_origin(annotation) is Annotated:
        return list_values(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        members = [member for member in get_args(annotation) if member is not NoneType]
        values = [value for member in members for value in list_values(member)]
        return [*values, "null"] if values else []
    return []


def _list_default(field: "FieldInfo") -> list[str]:
    value = None if field.is_required() else field.get_default(call_default_factory=True)
    return [str(value)] if isinstance(value, int | float | Path) else []


def read_key_values() -> dict[str, list[str]]:
    """Return the keys and values of `FILE`."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def format_key_values() -> str:
    """Return the content of `FILE`: a line for each key."""
    lines = [f"{json.dumps(key)}: {json.dumps(v)}" for key, v in collect_key_values().items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    FILE.write_text(format_key_values(), encoding="utf-8")
