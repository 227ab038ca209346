"""Problems of a config, in its own terms: key, value, rule, and fix."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any, cast, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from agentrl.config.document import FLOAT, INT, ConfigDocument, ConfigProblem
from agentrl.config.field_names import find_hints
from agentrl.config.schema import (
    ConfigKey,
    describe_values,
    element_of,
    format_value,
    iter_own_keys,
    keys,
    method_of,
    sections_of,
    takes,
)
from agentrl.config.section import ConfigSection
from agentrl.errors import ConfigError


def config_error(source: str, problems: Sequence[ConfigProblem]) -> ConfigError:
    """Return one error that lists all problems with their locations."""
    lines = [f"{p.origin}: {p.text}" if p.origin else p.text for p in problems]
    if len(lines) == 1:
        return ConfigError(lines[0] if problems[0].origin else f"{source}: {lines[0]}")
    return ConfigError("\n".join([f"{source}: {len(lines)} problems", *(f"  {x}" for x in lines)]))


def unknown_key(
    path: str,
    sections: Sequence[type[ConfigSection]],
    root: type[ConfigSection],
    value: object = None,
) -> str:
    """Return the error of an unknown key: what to write instead, and the keys of its section.

    A mapping of keys of another framework is answered key by key.
    """
    hints = find_hints(path, value)
    if hints and path not in hints:
        ways = "; ".join(f"{hint} for {theirs}" for theirs, hint in hints.items())
        return f"{path} is not a key; write for example {ways}"
    above, _, name = path.rpartition(".")
    names = sorted({key.name for section in sections for key in iter_own_keys(section)})
    near = [] if hints else _find_elsewhere(name, root, cutoff=1.0)
    near = near or [f"{above}.{n}".lstrip(".") for n in difflib.get_close_matches(name, names, n=1)]
    near = near or _find_elsewhere(name, root, cutoff=0.75)
    hint = f"did you mean {near[0]}? Keys of" if near else "keys of"
    if hints:
        hint = f"write for example {hints[path]}. Keys of"
    where = above or "a config"
    if len(sections) == 1 and (method := method_of(sections[0])):
        where += f" (name: {method})"
    return f"{path} is not a key; {hint} {where}: {', '.join(names)}"


def problems_of(
    error: ValidationError, document: ConfigDocument, root: type[ConfigSection]
) -> list[ConfigProblem]:
    """Return every problem pydantic found, each key once, in the order of the keys."""
    problems: dict[tuple[str, ...], ConfigProblem] = {}
    for details in error.errors(include_url=False):
        loc = details["loc"]
        place = _locate(loc, root)
        if details["type"] == "missing" and not place.parents_own:
            # An item of a list of fixed length: what is wrong is the length of the list.
            place = _locate(loc[:-1], root)
            text = _describe_wrong_value(place, details["input"])
        elif loc[-1] == "[key]":
            names = get_args(_locate(loc[:-2], root).annotation)[0]
            text = f"{place.dotted} is not a key; expected {describe_values(names)}"
        else:
            text = _describe(details, place, root)
        tag = ("name",) if details["type"].startswith("union_tag") else ()
        problems.setdefault(place.path, ConfigProblem(document.origin((*place.path, *tag)), text))
    return list(problems.values())


@dataclass(slots=True)
class _Place:
    """Place of an error in the schema."""

    annotation: object
    sections: tuple[type[ConfigSection], ...]
    """The sections whose key is meant; the methods to choose from at a choice."""
    path: tuple[str, ...] = ()
    parents: tuple[type[ConfigSection], ...] = ()
    key: ConfigKey | None = None
    metadata: Sequence[object] = ()

    @property
    def parents_own(self) -> bool:
        """Whether the path ends at a key of a section, and not at an item of a list."""
        return self.key is not None and self.path[-1] == self.key.name

    @property
    def dotted(self) -> str:
        return ".".join(self.path)


def _locate(loc: Sequence[int | str], root: type[ConfigSection]) -> _Place:
    """Follow pydantic's location down the schema, leaving out the names of union members."""
    place = _Place(root, (root,))
    for part in loc:
        members = [s for s in place.sections if len(place.sections) > 1 and method_of(s) == part]
        if members:
            place.sections = (members[0],)
        elif place.sections:
            every = [key for section in place.sections for key in iter_own_keys(section)]
            place.parents, place.path = place.sections, (*place.path, str(part))
            place.key = next((key for key in every if key.name == part), None)
            place.annotation = place.key.field.annotation if place.key else None
            place.sections = sections_of(place.annotation)
            place.metadata = place.key.field.metadata if place.key else ()
        elif isinstance(part, int) or (place.key and takes(place.annotation, dict)):
            place.path = (*place.path, str(part))
            place.annotation, place.metadata = element_of(place.annotation), ()
            place.sections = sections_of(place.annotation)
    return place


def _describe(details: ErrorDetails, place: _Place, root: type[ConfigSection]) -> str:
    kind, value = details["type"], details["input"]
    match kind:
        case "extra_forbidden":
            return unknown_key(place.dotted, place.parents, root, value)
        case "missing":
            return _describe_missing(place)
        case "union_tag_invalid" | "union_tag_not_found":
            return _describe_unknown_method(place, cast(Mapping[str, Any], value).get("name"))
        case "value_error":  # of a validator of ours
            return f"{place.dotted}: {details.get('ctx', {}).get('error', details['msg'])}"
        case _:
            return _describe_wrong_value(place, value)


def _describe_missing(place: _Place) -> str:
    doc = f": {place.key.doc}" if place.key else ""
    needed = [key.name for s in place.sections for key in iter_own_keys(s) if key.required]
    name = f"{place.dotted}.{needed[0]}" if needed else place.dotted
    return f"{place.dotted} is missing{doc} Set it, such as `{name}: ...` or {name}=..."


def _describe_unknown_method(place: _Place, name: object) -> str:
    methods = [method_of(section) for section in place.sections]
    near = difflib.get_close_matches(str(name), methods, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    expected = f"expected one of {', '.join(methods)}{hint}"
    return f"{place.dotted}.name is {format_value(name)}, {expected}"


def _describe_wrong_value(place: _Place, value: object) -> str:
    wants = describe_values(place.annotation, place.metadata)
    required = place.key is not None and place.key.required
    if value in [method_of(section) for section in place.sections if method_of(section)]:
        way = f"; write {place.dotted}.name={value}, or `{place.dotted}: {{name: {value}}}`"
        return f"{place.dotted} is {value}, expected a section{way}"
    hint = _suggest(value, place.annotation, required=required)
    if value == 0 and place.path[:1] == ("warmstart",):
        hint = "; write warmstart=null to disable the warm start"
    return f"{place.dotted} is {format_value(value)}, expected {wants}{hint}{_quote_doc(place)}"


def _quote_doc(place: _Place) -> str:
    return f" ({place.key.name}: {place.key.doc})" if place.key and place.key.doc else ""


def _suggest(value: object, annotation: object, *, required: bool) -> str:
    if takes(annotation, str) and isinstance(value, int | float):
        return f'; write it in quotes: "{format_value(value)}"'
    if takes(annotation, int) and isinstance(value, float) and value.is_integer():
        return f"; write {int(value)}"
    if takes(annotation, bool) and str(value).lower() in {"yes", "on", "1"}:
        return "; write true"
    if takes(annotation, bool) and str(value).lower() in {"no", "off", "0"}:
        return "; write false"
    is_number = isinstance(value, str) and (INT.fullmatch(value) or FLOAT.fullmatch(value))
    if is_number and not takes(annotation, str):
        return "; write it without quotes"
    if value is None and not takes(annotation, NoneType) and not required:
        return "; remove the key to use its default"
    return ""


def _find_elsewhere(name: str, root: type[ConfigSection], *, cutoff: float) -> list[str]:
    """Return the key of another section with this name, or a similar one."""
    by_name: dict[str, str] = {}
    for key in keys(root):
        by_name.setdefault(key.name, key.path)
    return [by_name[near] for near in difflib.get_close_matches(name, by_name, n=1, cutoff=cutoff)]
