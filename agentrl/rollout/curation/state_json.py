"""State to JSON and back. A state that comes back different is refused, not guessed at."""

import json
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from agentrl.errors import ConfigError

S = TypeVar("S")


def encode(state: object) -> dict[str, Any]:
    """Return a frozen dataclass as what `json.dumps` takes; floats keep every bit."""
    return TypeAdapter(type(state)).dump_python(state, mode="json")


def decode(kind: type[S], data: Any) -> S:
    """Return the `kind` that `encode` made `data` of.

    Raises `ConfigError` when `data` is anything else: a key too many or too few, a wrong type.
    """
    try:
        state = TypeAdapter(kind).validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise _build_error(kind, f"{where}: {first['msg']}") from error
    # Keys that the dataclass does not know are ignored by the validation, and would be lost here.
    if encode(state) != data:
        raise _build_error(kind, "its keys do not match this version")
    return state


def _build_error(kind: type[object], why: str) -> ConfigError:
    return ConfigError(
        f"the saved {kind.__name__} cannot be read ({why}); resume with the version of agentrl "
        "that wrote it, or start a new run"
    )
