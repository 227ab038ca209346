"""Every slot of the learning half and every method in it, for `agentrl methods` and the docs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import ValidationError

from agentrl.config.learn import LearnSection
from agentrl.config.schema import ConfigKey, format_value, iter_own_keys, method_of
from agentrl.config.section import ConfigSection
from agentrl.learn import (
    advantages,
    corrections,
    group_reward,
    hint,
    losses,
    proximals,
    rejections,
    selection,
    shaping,
)
from agentrl.learn.method import LearnMethod, Need
from agentrl.learn.slot_names import SLOT_NAMES, check_slot


@dataclass(frozen=True, slots=True)
class MethodSlot:
    """A place in the `learn` section that takes a method, one or none, or a list of them."""

    key: str
    methods: Sequence[LearnMethod[Any]]

    @property
    def default(self) -> str:
        """Return the name of the method that is taken where none is named; empty where none is
        needed."""
        value = LearnSection.model_fields[self.key].default
        return method_of(type(value)) if isinstance(value, ConfigSection) else ""

    def sections(self, learn: LearnSection) -> tuple[ConfigSection, ...]:
        """Return the sections that a config has in this place."""
        value = getattr(learn, self.key)
        if value is None:
            return ()
        return value if isinstance(value, tuple) else (value,)


METHODS: Mapping[str, Sequence[LearnMethod[Any]]] = {
    "group_reward": group_reward.METHODS,
    "reward_shaping": shaping.METHODS,
    "advantage": advantages.METHODS,
    "loss": losses.METHODS,
    "proximal": proximals.METHODS,
    "correction": corrections.METHODS,
    "rejection": rejections.METHODS,
    "selection": selection.METHODS,
    "hint": hint.METHODS,
}
SLOTS = tuple(MethodSlot(name, METHODS[name]) for name in SLOT_NAMES)
"""All slots, in the order in which `docs/methods.md` explains them."""

HEADINGS = ("name", "what it is", "knobs", "needs", "source")


def slots(key: str = "") -> tuple[MethodSlot, ...]:
    """Return the slot of that name, or all of them. Raises `ConfigError` for another name."""
    if not key:
        return SLOTS
    check_slot(key)
    return tuple(slot for slot in SLOTS if slot.key == key)


def rows(slot: MethodSlot, *, mark: str = "") -> list[tuple[str, ...]]:
    """Return a row per method, as in `HEADINGS`; `mark` stands on both sides of what is typed."""
    return [
        (
            f"{mark}{name}{mark}" + (" (default)" if name == slot.default else ""),
            " ".join((method.section.__doc__ or "").split()),
            ", ".join(f"{mark}{k.name}: {k.default}{mark}" for k in knobs(method.section)),
            "; ".join(_needs(method, mark)),
            method.source,
        )
        for method in slot.methods
        if (name := method_of(method.section))
    ]


def to_json(slot: MethodSlot) -> list[dict[str, Any]]:
    """Return the methods of a slot as plain values."""
    return [
        {
            "slot": slot.key,
            "name": name,
            "default": name == slot.default,
            "description": " ".join((method.section.__doc__ or "").split()),
            "keys": {
                key.name: {"type": key.wants, "default": key.default, "meaning": key.doc}
                for key in knobs(method.section)
            },
            "needs": list(_needs(method, "")),
            "source": method.source,
        }
        for method in slot.methods
        if (name := method_of(method.section))
    ]


def knobs(section: type[ConfigSection]) -> list[ConfigKey]:
    """Return the keys of a method, without the `name` that chose it."""
    return [key for key in iter_own_keys(section) if key.name != "name"]


def variants(section: type[ConfigSection]) -> Iterator[tuple[str, ConfigSection]]:
    """Yield the section with each value of each of its choices, and that choice in words.

    A choice is a knob with a few allowed values; a value that another knob would have to go with is
    left out.
    """
    for key in knobs(section):
        for value in _choices(key.field.annotation):
            try:
                yield f"{key.name}: {format_value(value)}", section(**{key.name: value})
            except ValidationError:
                continue


def markdown() -> str:
    """Return a table per slot, for the documentation."""
    parts: list[str] = []
    for slot in SLOTS:
        parts += [f"### `{slot.key}`", "", _line(HEADINGS), _line(["---"] * len(HEADINGS))]
        parts += [*(_line(row) for row in rows(slot, mark="`")), ""]
    return "\n".join(parts)


def _needs(method: LearnMethod[Any], mark: str) -> Iterator[str]:
    """Yield what a method needs with its defaults, and what choices add to that."""
    always: frozenset[Need] = method.needs(method.section())
    yield from sorted(always)
    for words, section in variants(method.section):
        if more := method.needs(section) - always:
            yield f"{', '.join(sorted(more))} with {mark}{words}{mark}"


def _choices(annotation: object) -> Iterator[object]:
    if annotation is bool:
        yield from (True, False)
    elif annotation is NoneType:
        yield None
    elif get_origin(annotation) is Literal:
        yield from get_args(annotation)
    elif get_origin(annotation) in (Union, UnionType):
        for member in get_args(annotation):
            yield from _choices(member)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
