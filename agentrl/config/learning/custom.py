"""A method that the user brings."""

from typing import Literal

from pydantic import Field

from agentrl.config.section import ConfigSection


class CustomMethod(ConfigSection):
    """A function of yours, called with the slot's arguments and with `arguments`."""

    name: Literal["custom"] = "custom"
    function: str
    """Import path of the function: `package.module:name`."""
    arguments: dict[str, bool | int | float | str] = Field(
        default_factory=dict[str, bool | int | float | str]
    )
    """Keyword arguments it gets besides."""
