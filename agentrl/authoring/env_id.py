"""The names of environments: `namespace/Name-v0`."""

import re
from dataclasses import dataclass

from agentrl.errors import ConfigError

_ID = re.compile(r"(?P<name>[A-Za-z][\w-]*/[A-Za-z][\w.-]*?)(?:-v(?P<version>\d+))?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvId:
    """An id, taken apart."""

    name: str
    """With its namespace, without its version."""
    version: int | None
    """None stands for the newest."""

    @classmethod
    def parse(cls, text: str) -> "EnvId":
        """Return the parts of an id; raise `ConfigError` for what is none."""
        match = _ID.fullmatch(text)
        if match is None:
            raise ConfigError(
                f"environment id {text!r} does not have the form namespace/Name-v0 (letters, "
                "digits, '_', '.', '-'), such as demo/Multiply-v0; name a class as module:Class"
            )
        version = match["version"]
        return cls(name=match["name"], version=None if version is None else int(version))

    @classmethod
    def is_id(cls, text: str) -> bool:
        """Return whether `text` is an id, with or without a version."""
        return _ID.fullmatch(text) is not None

    def __str__(self) -> str:
        return self.name if self.version is None else f"{self.name}-v{self.version}"
