"""Table of the training methods, for `agentrl methods` and docs/methods.md.

It lies in a file beside this module, since the methods themselves import torch, which takes
seconds. After a change of a method, `python -m agentrl.learn.catalogue` writes it again.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError

FILE = Path(__file__).with_suffix(".json")
OTHER = "other"
"""Name of the slot of sections that are a method of their own, such as `rollout.growth`."""
HEADINGS = ("name", "what it is", "knobs", "needs", "source")
WITH = " with "
"""Stands between a need and the value of a knob that has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobEntry:
    """A key of a method, in words."""

    type: str
    default: str
    meaning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodEntry:
    """A method of a slot, in words."""

    slot: str
    """Last part of the slot's config key, or `OTHER`."""
    path: str
    """Config key that takes the method."""
    name: str
    """Value of `name` in that section; the key itself in `OTHER`."""
    default: bool
    description: str
    keys: Mapping[str, KnobEntry]
    needs: tuple[str, ...]
    source: str


def read_table(slot: str = "") -> dict[str, list[MethodEntry]]:
    """Return the methods of every slot, or of one. Raises `ConfigError` for another name."""
    table: dict[str, list[MethodEntry]] = {}
    for row in json.loads(FILE.read_text(encoding="utf-8")):
        knobs = {name: KnobEntry(**knob) for name, knob in row.pop("keys").items()}
        entry = MethodEntry(keys=knobs, needs=tuple(row.pop("needs")), **row)
        table.setdefault(entry.slot, []).append(entry)
    if not slot:
        return table
    if slot not in table:
        raise ConfigError(f"{slot!r} is not a slot; the slots are {', '.join(table)}")
    return {slot: table[slot]}


def format_table(entries: Iterable[MethodEntry]) -> str:
    """Return the content of `FILE`: a line for each method."""
    return "[\n" + ",\n".join(json.dumps(asdict(entry)) for entry in entries) + "\n]\n"


def heading(entries: Sequence[MethodEntry]) -> str:
    """Return the heading of a slot: the key that takes its methods."""
    return f"{OTHER} sections" if entries[0].slot == OTHER else entries[0].path


def rows(entries: Iterable[MethodEntry], *, mark: str = "") -> list[tuple[str, ...]]:
    """Return a row per method, as in `HEADINGS`; `mark` stands on both sides of what is typed."""
    return [
        (
            f"{mark}{entry.name}{mark}" + (" (default)" if entry.default else ""),
            entry.description,
            ", ".join(f"{mark}{name}: {k.default}{mark}" for name, k in entry.keys.items()),
            "; ".join(_mark_value(need, mark) for need in entry.needs),
            entry.source,
        )
        for entry in entries
    ]


def to_json(entries: Iterable[MethodEntry]) -> list[dict[str, Any]]:
    """Return methods as plain values."""
    return [asdict(entry) for entry in entries]


def markdown() -> str:
    """Return a table per slot, for the documentation."""
    parts: list[str] = []
    for entries in read_table().values():
        parts += [f"### `{entries[0].slot}`", "", _line(HEADINGS), _line(["---"] * len(HEADINGS))]
        parts += [*(_line(row) for row in rows(entries, mark="`")), ""]
    return "\n".join(parts)


def _mark_value(need: str, mark: str) -> str:
    name, word, value = need.partition(WITH)
    return f"{name}{word}{mark}{value}{mark}" if value else name


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
