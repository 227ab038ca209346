"""Base of every part of a config: closed, frozen, and aware of which of its keys were read."""

import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, TypeVar, cast, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, field_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticKnownError

from agentrl.errors import ConfigError

_peeking: ContextVar[bool] = ContextVar("agentrl_config_peeking", default=False)


class ConfigSection(BaseModel):
    """A closed, frozen group of keys. Reading a key is remembered, see `find_unread`.

    Attribute access and `model_dump` count as reading; comparison, `repr` and whatever happens
    inside `peeking` do not. The memory is this process's: what a worker process reads of a pickled
    copy is not seen here.
    """

    # Defaults are held to their own rules by a test: validating them here would fail for paths,
    # which strict JSON only takes as text.
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    _read: set[str] = PrivateAttr(default_factory=set[str])

    @field_validator("*")
    @classmethod
    def _is_no_nan(cls, value: Any) -> Any:
        if isinstance(value, float) and math.isnan(value):  # no bound of its own refuses it
            raise PydanticKnownError("finite_number")
        return value

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_") and name in type(self).__dict__.get("__pydantic_fields__", ()):
            private = object.__getattribute__(self, "__pydantic_private__")
            if private is not None and not _peeking.get():
                private["_read"].add(name)
        return super().__getattribute__(name)

    def __eq__(self, other: object) -> bool:
        # Pydantic's compares private attributes too, and who has read what is no part of a value.
        if not isinstance(other, ConfigSection) or type(self) is not type(other):
            return NotImplemented
        with peeking():
            return self.__dict__ == other.__dict__

    def model_dump(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the keys as keyword arguments; counts as reading every one, inner ones too."""
        mark_read(self)
        return super().model_dump(*args, **kwargs)


class CustomMethod(ConfigSection):
    """Your own function, called with the slot's arguments and `arguments`."""

    name: Literal["custom"] = "custom"
    function: str
    """Import path of the function, as `package.module:name`."""
    arguments: dict[str, bool | int | float | str] = Field(
        default_factory=dict[str, bool | int | float | str]
    )
    """Additional keyword arguments of the function."""


Section = TypeVar("Section", bound=ConfigSection)


@contextmanager
def peeking() -> Generator[None]:
    """Let the block look at a config without counting as a reader of its keys."""
    token = _peeking.set(True)
    try:
        yield
    finally:
        _peeking.reset(token)


def mark_read(section: Section) -> Section:
    """Return a section, of which every key, inner ones too, now counts as read."""
    for inner in _find_sections(section):
        private = object.__getattribute__(inner, "__pydantic_private__")
        private["_read"].update(type(inner).model_fields)
    return section


def is_tag(name: str, field: FieldInfo) -> bool:
    """Whether a key only names the method of a section; it is read by choosing the class."""
    annotation = field.annotation
    return name == "name" and get_origin(annotation) is Literal and len(get_args(annotation)) == 1


def find_custom_methods(section: ConfigSection) -> Iterator[tuple[str, CustomMethod]]:
    """Yield the functions of the user's own that a config names, with their dotted keys."""
    pairs: list[tuple[str, object]] = [("", section)]
    while pairs:
        prefix, value = pairs.pop()
        if isinstance(value, CustomMethod):
            yield prefix.removesuffix("."), value
        pairs += [(f"{prefix}{name}.", item) for name, item in _iter_items(value)]


def find_unread(section: ConfigSection) -> list[str]:
    """Return the dotted names of keys that differ from their default and were never read. A key
    that repeats its default is left out: without it the run would be the same. So a saved resolved
    config, which names every key, may be trained again."""
    with peeking():
        return list(_find_unread(section, ""))


def check_all_read(section: ConfigSection) -> None:
    """Raise `ConfigError` if a key was set and the run never looked at it."""
    if names := find_unread(section):
        is_are = "is" if len(names) == 1 else "are"
        raise ConfigError(
            f"{', '.join(names)} {is_are} set but never read: no part of this run uses "
            f"{'it' if len(names) == 1 else 'them'}, so the value has no effect; remove it from "
            "the config, or enable the part that it belongs to"
        )


def _find_unread(value: object, prefix: str) -> Iterator[str]:
    """Yield the unread keys in `value`, whose own keys begin with `prefix`."""
    if not isinstance(value, ConfigSection):
        for name, item in _iter_items(value):
            yield from _find_unread(item, f"{prefix}{name}.")
        return
    read = object.__getattribute__(value, "__pydantic_private__")["_read"]
    for name, item in _iter_items(value):
        field = type(value).model_fields[name]
        if is_tag(name, field) or item == field.get_default(call_default_factory=True):
            continue
        inner = list(_find_unread(item, f"{prefix}{name}."))
        yield from inner
        if not inner and name not in read:
            yield prefix + name


def _find_sections(value: object) -> Iterator[ConfigSection]:
    if isinstance(value, ConfigSection):
        yield value
    for _, item in _iter_items(value):
        yield from _find_sections(item)


def _iter_items(value: object) -> Iterator[tuple[str, object]]:
    """Yield what a section, a mapping or a list holds, with its names; reads no key."""
    match value:
        case ConfigSection():
            with peeking():
                items = [(name, getattr(value, name)) for name in type(value).model_fields]
            yield from items
        case Mapping():
            yield from ((str(k), item) for k, item in cast(Mapping[str, object], value).items())
        case Sequence() if not isinstance(value, str | bytes):
            yield from ((str(i), item) for i, item in enumerate(cast(Sequence[object], value)))
        case _:
            return
