"""Equality of values once they have crossed as JSON."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from agentrl.runtime import json_limits
from agentrl.runtime.json_limits import JsonLimits

TOLERANCE = 1e-9
"""Of floats, relative and absolute."""
VALUE_LIMITS = JsonLimits(digits=4_300)
"""Of what is wanted and of what comes back; Python itself writes no longer integers."""


def same(wanted: Any, got: Any, *, tolerance: float = TOLERANCE) -> bool:
    """Return whether two JSON values are equal, types included: `True` is not 1, and 1 not 1.0.

    Floats may differ by `tolerance`, relative or absolute; NaN equals nothing. `got` is never asked
    its opinion: values of any type that JSON lacks are unequal to everything.
    """
    if type(wanted) is not type(got):
        return False
    if isinstance(wanted, float):
        return math.isclose(wanted, cast("float", got), rel_tol=tolerance, abs_tol=tolerance)
    if isinstance(wanted, list):
        ours, theirs = cast("list[Any]", wanted), cast("list[Any]", got)
        return len(ours) == len(theirs) and all(
            same(one, other, tolerance=tolerance) for one, other in zip(ours, theirs, strict=True)
        )
    if isinstance(wanted, dict):
        mine, yours = cast("dict[str, Any]", wanted), cast("dict[str, Any]", got)
        return mine.keys() == yours.keys() and all(
            same(mine[key], yours[key], tolerance=tolerance) for key in mine
        )
    return wanted is None or (isinstance(wanted, bool | int | str) and wanted == got)


def read_json(data: bytes, *, limit_bytes: int) -> Any:
    """Return the value of a JSON text that strangers wrote; `ValueError` for what is none.

    NaN and the infinities, more than `limit_bytes`, and what is beyond `VALUE_LIMITS` are none.
    """
    return json_limits.read_json(data, replace(VALUE_LIMITS, text_bytes=limit_bytes))


def check_json(value: Any, what: str) -> None:
    """Raise `ValueError` unless `value` crosses as JSON and comes back the same."""
    try:
        json_limits.check_json(value, VALUE_LIMITS)
        back = json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{what} is not a JSON value: {error}") from error
    if not same(_convert_tuples(value), back):
        raise ValueError(f"{what} changes in a round trip through JSON; use str keys and lists")


def _convert_tuples(value: Any) -> Any:
    if isinstance(value, Mapping):
        pairs = cast("Mapping[Any, Any]", value).items()
        return {key: _convert_tuples(item) for key, item in pairs}
    if isinstance(value, list | tuple):
        return [_convert_tuples(item) for item in cast("Sequence[Any]", value)]
    return value
