"""Every slot of the learning half and every method in it.

As a program, it writes the table that `agentrl methods` reads: `python -m agentrl.learn.catalogue`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import ValidationError

from agentrl.config.curation import CurationSection
from agentrl.config.learn import LearnSection
from agentrl.config.method_table import (
    FILE,
    OTHER,
    WITH,
    KnobEntry,
    MethodEntry,
    format_table,
)
from agentrl.config.run import RunConfig
from agentrl.config.schema import ConfigKey, format_value, iter_own_keys, lookup, method_of
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
SLOTS = tuple(MethodSlot(name, methods) for name, methods in METHODS.items())
"""All slots, in the order in which `docs/methods.md` explains them."""

SECTION_SOURCES: Mapping[str, str] = {
    "rollout.branching": "Dong et al. 2025, arXiv 2507.19849 (ARPO) and 2510.14545 (AEPO); Tree-"
    "GRPO, arXiv 2509.21240",
    "rollout.drafts": "Liu et al. 2025 (SPEC-RL), arXiv 2509.23232",
    "rollout.schedule": "SIRI, arXiv 2509.25176",
    "rollout.growth": "AgentMath, arXiv 2512.20745",
    "learn.kl": "Liu et al. 2025 (ProRL), arXiv 2505.24864; BroRL, arXiv 2510.01180",
}
"""Sections that are a method of their own, and their sources."""
CURATION_SOURCES: Mapping[str, str] = {
    "sampler.cdas": "CDAS, arXiv 2505.17652",
    "sampler.vade": "VADE, arXiv 2511.18902",
    "allocation.dart": "DART, arXiv 2509.23866",
    "allocation.dars": "DARS, arXiv 2508.13755",
    "allocation.xrpo": "XRPO, arXiv 2510.06672",
    "allocation.duet": "DUET, arXiv 2605.08441; Haoyu-Hu/DUET",
    "filter.dapo": "Yu et al. 2025 (DAPO), arXiv 2503.14476; UI-S1, arXiv 2509.11543",
    "pool.success": "DART, arXiv 2509.23866",
    "members.balanced": "DART, arXiv 2509.23866",
    "steps.high_entropy": "DART, arXiv 2509.23866",
}
"""Sources of the methods of curation, by slot and name."""


def collect_entries() -> Iterator[MethodEntry]:
    """Yield every method in words: of `learn`, of `curation`, and sections that are one each."""
    for slot in SLOTS:
        yield from describe_slot(slot)
    for key in iter_own_keys(CurationSection, "curation."):
        default = key.field.default
        for section in key.sections:
            yield _describe(
                section,
                slot=key.name,
                path=key.path,
                default=type(default) is section,
                source=CURATION_SOURCES.get(f"{key.name}.{method_of(section)}", ""),
            )
    for path, source in SECTION_SOURCES.items():
        (key,) = lookup(RunConfig, path)
        (section,) = key.sections
        yield _describe(section, slot=OTHER, path=path, default=False, source=source)


def describe_slot(slot: MethodSlot) -> Iterator[MethodEntry]:
    """Yield the methods of a slot of `learn` in words."""
    for method in slot.methods:
        yield _describe(
            method.section,
            slot=slot.key,
            path=f"learn.{slot.key}",
            default=method_of(method.section) == slot.default,
            needs=tuple(_needs(method)),
            source=method.source,
        )


def _describe(
    section: type[ConfigSection],
    *,
    slot: str,
    path: str,
    default: bool,
    source: str,
    needs: tuple[str, ...] = (),
) -> MethodEntry:
    return MethodEntry(
        slot=slot,
        path=path,
        name=method_of(section) or path,
        default=default,
        description=" ".join((section.__doc__ or "").split()),
        keys={
            key.name: KnobEntry(type=key.wants, default=key.default, meaning=key.doc)
            for key in knobs(section)
        },
        needs=needs,
        source=source,
    )


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


def _needs(method: LearnMethod[Any]) -> Iterator[str]:
    """Yield what a method needs with its defaults, and what choices add to that."""
    always: frozenset[Need] = method.needs(method.section())
    yield from sorted(always)
    for words, section in variants(method.section):
        if more := method.needs(section) - always:
            yield f"{', '.join(sorted(more))}{WITH}{words}"


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


if __name__ == "__main__":
    FILE.write_text(format_table(collect_entries()), encoding="utf-8")
