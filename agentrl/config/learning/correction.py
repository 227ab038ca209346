"""The correction slot: how much a token counts that another policy sampled."""

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat

from agentrl.config.learning.custom import CustomMethod
from agentrl.config.section import Section


class NoCorrection(Section):
    """Trust the engine: the behaviour policy is taken as the proximal one."""

    name: Literal["none"] = "none"


class TruncatedCorrection(Section):
    """Truncated importance sampling on proximal over behaviour."""

    name: Literal["tis"] = "tis"
    level: Literal["token", "sequence"] = "token"
    """A weight per token, or the product over a trajectory for all its tokens."""
    cap: PositiveFloat = 2.0
    """Weights above it are cut to it."""


AnyCorrection = Annotated[
    NoCorrection | TruncatedCorrection | CustomMethod, Field(discriminator="name")
]
