"""Differences between two configs, for a run or an evaluation that must resume unchanged."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from agentrl.config.run import RunConfig
from agentrl.config.schema import format_value, plain

LISTED = 8


def changes(was: RunConfig, now: RunConfig, *, counts: Callable[[str], bool]) -> str:
    """Return the relevant keys that differ, each with both values; empty if there are none."""
    old, new = dict(_flatten(plain(was))), dict(_flatten(plain(now)))
    changed = [
        f"{key} was {_format_known(old, key)} and is {_format_known(new, key)}"
        for key in sorted(old.keys() | new.keys())
        if not (key in old and key in new and old[key] == new[key]) and counts(key)
    ]
    more = len(changed) - LISTED
    changed[LISTED:] = [f"and {more} more"] if more > 0 else []
    return "; ".join(changed)


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield the dotted key and value of every leaf."""
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from _flatten(cast(dict[str, Any], value), f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _format_known(values: Mapping[str, object], key: str) -> str:
    return format_value(values[key]) if key in values else "not set"
