"""The schema of a config, as data: its keys, their types, and their meanings."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from agentrl.config.section import ConfigSection, is_tag, peeking

BOUNDS: Mapping[type, tuple[str, str]] = {
    Ge: ("ge", "at least"),
    Gt: ("gt", "more than"),
    Le: ("le", "at most"),
    Lt: ("lt", "less than"),
    MinLen: ("min_length", "a length of at least"),
    MaxLen: ("max_length", "a length of at most"),
}

WORDS: Mapping[object, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path",
    NoneType: "null",
    Any: "anything",
}


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One key of the schema."""

    path: str
    """Dotted, from the top of the config."""
    field: FieldInfo
    method: str = ""
    """The `name` of the method whose section this key is in; empty where there is no choice."""

    @property
    def name(self) -> str:
        """Return the last part of the path."""
        return self.path.rpartition(".")[2]

    @property
    def doc(self) -> str:
        """Description of the field, or of the section it holds, on one line."""
        only = self.sections[0] if len(self.sections) == 1 else None
        return " ".join((self.field.description or (first_line(only) if only else "")).split())

    @property
    def sections(self) -> tuple[type[ConfigSection], ...]:
        """Return the section this key holds, one per method; empty for a plain value."""
        return sections_of(self.field.annotation)

    @property
    def wants(self) -> str:
        """Return a description of the allowed values."""
        return describe_values(self.field.annotation, self.field.metadata)

    @property
    def required(self) -> bool:
        """Whether the config is wrong without it."""
        return self.field.is_required()

    @property
    def default(self) -> str:
        """Return the default as it would stand in a file, or `required`."""
        if self.required:
            return "required"
        value = self.field.get_default(call_default_factory=True)
        if isinstance(value, ConfigSection):
            return method_of(type(value)) or "a section"
        return format_value(value)


def keys(section: type[ConfigSection], prefix: str = "") -> Iterator[ConfigKey]:
    """Yield every key below `section`, each section before what is in it."""
    for key in iter_own_keys(section, prefix):
        yield key
        for inner in key.sections:
            yield from keys(inner, f"{key.path}.")


def iter_own_keys(section: type[ConfigSection], prefix: str = "") -> Iterator[ConfigKey]:
    """Yield the keys of `section` itself."""
    method = method_of(section)
    for name, field in section.model_fields.items():
        yield ConfigKey(prefix + name, field, method)


def lookup(root: type[ConfigSection], path: str) -> tuple[ConfigKey, ...]:
    """Return the keys that `path` can mean: several when two methods share a key, or none."""
    matches: tuple[ConfigKey, ...] = ()
    sections: tuple[type[ConfigSection], ...] = (root,)
    prefix = ""
    for part in path.split("."):
        every = [key for section in sections for key in iter_own_keys(section, prefix)]
        matches = tuple(key for key in every if key.name == part)
        sections = tuple(section for key in matches for section in key.sections)
        prefix += f"{part}."
    return matches


def sections_of(annotation: object) -> tuple[type[ConfigSection], ...]:
    """Return the section classes a value of this type may be."""
    if isinstance(annotation, type) and issubclass(annotation, ConfigSection):
        return (annotation,)
    if get_origin(annotation) is Annotated:
        return sections_of(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return tuple(s for member in get_args(annotation) for s in sections_of(member))
    return ()


def method_of(section: type[ConfigSection]) -> str:
    """Return the `name` that chooses this section among others, or nothing."""
    for name, field in section.model_fields.items():
        if is_tag(name, field):
            return str(get_args(field.annotation)[0])
    return ""


def element_of(annotation: object) -> object:
    """Return the type of what a list, tuple or mapping holds, and `Any` for anything else."""
    inner = [a for a in get_args(annotation) if a is not Ellipsis and a is not NoneType]
    if get_origin(annotation) in (Union, UnionType):
        return element_of(inner[0]) if inner else Any
    return inner[-1] if inner else Any


def takes(annotation: object, kind: type) -> bool:
    """Whether a value of `kind` is a member of this type, at its top level."""
    if get_origin(annotation) in (Union, UnionType):
        return any(takes(member, kind) for member in get_args(annotation))
    if get_origin(annotation) is Annotated:
        return takes(get_args(annotation)[0], kind)
    if get_origin(annotation) is Literal:
        return any(type(value) is kind for value in get_args(annotation))
    return annotation is kind or get_origin(annotation) is kind


def describe_values(annotation: object, metadata: Sequence[object] = ()) -> str:
    """Return a description of the values that a type with these constraints allows."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return describe_values(arguments[0], arguments[1:])
    if sections := sections_of(annotation):
        return _describe_sections(annotation, sections)
    if origin in (Union, UnionType):
        # Constraints on `int | None` stand on the field and speak of the number.
        words = [describe_values(a, () if a is NoneType else metadata) for a in arguments]
        return (", or " if any("," in word for word in words) else " or ").join(words)
    if origin is Literal:
        return "one of " + ", ".join(format_value(value) for value in arguments)
    if origin is list:
        return _describe_list((*arguments, Ellipsis))
    if origin is tuple:
        return _describe_list(arguments)
    if origin is dict:
        return "a mapping"
    return ", ".join([WORDS.get(annotation, str(annotation)), *_describe_constraints(metadata)])


def _describe_sections(annotation: object, sections: Sequence[type[ConfigSection]]) -> str:
    methods = [method for section in sections if (method := method_of(section))]
    words = f"a section, name one of {', '.join(methods)}" if methods else "a section"
    return f"{words}, or null" if takes(annotation, NoneType) else words


def _describe_list(arguments: Sequence[object]) -> str:
    if arguments[-1:] == (Ellipsis,):
        return f"a list, each {describe_values(arguments[0])}"
    return f"a list of {len(arguments)}: {', '.join(map(describe_values, arguments))}"


def _describe_constraints(metadata: Sequence[object]) -> Iterator[str]:
    for rule in metadata:
        if type(rule) in BOUNDS:
            attribute, words = BOUNDS[type(rule)]
            yield f"{words} {format_value(getattr(rule, attribute))}"
        elif pattern := getattr(rule, "pattern", None):
            yield f"matching {pattern}"


def first_line(section: type[ConfigSection]) -> str:
    """Return the first line of a section's docstring."""
    return (section.__doc__ or "").strip().partition("\n")[0]


def plain(value: object) -> Any:
    """Return a config, or a part of it, as mappings, lists, text and numbers; reads no key."""
    match value:
        case ConfigSection():
            with peeking():
                return {name: plain(getattr(value, name)) for name in type(value).model_fields}
        case Path():
            return str(value)
        case Mapping():
            return {key: plain(item) for key, item in cast(Mapping[Any, Any], value).items()}
        case list() | tuple() | set() | frozenset():
            return [plain(item) for item in cast(Sequence[Any], value)]
        case _:
            return value


def format_value(value: object) -> str:
    """Return a value as it would stand in a config file, cut after 60 characters."""
    if value is PydanticUndefined:
        return "nothing"
    text = json.dumps(plain(value), default=repr, ensure_ascii=False)
    text = text[1:-1] if isinstance(value, str | Path) and _is_plain(text[1:-1]) else text
    return text if len(text) <= 60 else text[:57] + "..."


def _is_plain(text: str) -> bool:
    """Whether text needs no quotes to be told from a number and from a sentence."""
    return bool(text) and not text[0].isdigit() and all(c.isalnum() or c in "-_./:" for c in text)
