"""What every part of a config is: closed, frozen, and aware of which of its keys were read."""

from typing import Any

from pydantic import BaseModel, ConfigDict, PrivateAttr


class Section(BaseModel):
    """A closed, frozen group of keys. Reading a key is remembered, see `unread`."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    _read: set[str] = PrivateAttr(default_factory=set[str])

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_") and name in type(self).__dict__.get("__pydantic_fields__", ()):
            private = object.__getattribute__(self, "__pydantic_private__")
            if private is not None:
                private["_read"].add(name)
        return super().__getattribute__(name)


def unread(section: Section, prefix: str = "") -> list[str]:
    """Return the dotted names of keys that were set by the user and read by nobody."""
    private = object.__getattribute__(section, "__pydantic_private__") or {}
    read: set[str] = private.get("_read", set())
    names: list[str] = []
    for name in sorted(section.model_fields_set):
        value = object.__getattribute__(section, "__dict__")[name]
        if isinstance(value, Section):
            names += unread(value, f"{prefix}{name}.")
        elif name not in read:
            names.append(prefix + name)
    return names
