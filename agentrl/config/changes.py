"""Differences between two configs, for a run or an evaluation that must resume unchanged."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from agentrl.config.run import RunConfig
from agentrl.config.schema import plain, shown

LISTED = 8


def changes(was: RunConfig, now: RunConfig, *, counts: Callable[[str], bool]) -> str:
    """Return the relevant keys that differ, each with both values; empty if there are none."""
    old, new = dict(_flat(plain(was))), dict(_flat(plain(now)))
    changed = [
        f"{key} was {_known(old, key)} and is {_known(new, key)}"
        for key in sorted(old.keys() | new.keys())
        if not (key in old and key in new and old[key] == new[key]) and counts(key)
    ]
    more = len(changed) - LISTED
    changed[LISTED:] = [f"and {more} more"] if more > 0 else []
    return "; ".join(changed)


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield the dotted key and value of every leaf."""
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from _flat(cast(dict[str, Any], value), f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _known(values: Mapping[str, object], key: str) -> str:
    return shown(values[key]) if key in values else "not set"
