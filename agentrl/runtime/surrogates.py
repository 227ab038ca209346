"""Halves of surrogate pairs, which a text of Python can hold and no file, request or tokenizer."""

from collections.abc import Mapping, Sequence
from typing import Any, cast


def replace_surrogates(value: Any) -> Any:
    """Return a JSON value with a question mark for half of a surrogate pair.

    Everything that leaves the process has it, so that a policy and its records see the same.
    """
    if isinstance(value, str):
        return value if value.isascii() else value.encode(errors="replace").decode()
    if isinstance(value, Mapping):
        fields = cast("Mapping[str, Any]", value)
        return {replace_surrogates(name): replace_surrogates(one) for name, one in fields.items()}
    if isinstance(value, list | tuple):
        return [replace_surrogates(one) for one in cast("Sequence[Any]", value)]
    return value
