"""A user-supplied method."""

from typing import Literal

from pydantic import Field

from agentrl.config.section import ConfigSection


class CustomMethod(ConfigSection):
    """Your own function, called with the slot's arguments and `arguments`."""

    name: Literal["custom"] = "custom"
    function: str
    """Import path of the function, as `package.module:name`."""
    arguments: dict[str, bool | int | float | str] = Field(
        default_factory=dict[str, bool | int | float | str]
    )
    """Additional keyword arguments of the function."""
