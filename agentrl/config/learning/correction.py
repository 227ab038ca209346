"""The correction slot: how much a token counts that another policy sampled."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat

from agentrl.config.learning.custom import CustomMethod
from agentrl.config.section import ConfigSection

Level = Literal["token", "sequence", "geometric"]
"""A ratio per token; for all tokens of a trajectory the product of its ratios, or their geometric
mean."""


class NoCorrection(ConfigSection):
    """Trust the engine: the behaviour policy is taken as the proximal one."""

    name: Literal["none"] = "none"


class TruncatedCorrection(ConfigSection):
    """Truncated importance sampling on proximal over behaviour."""

    name: Literal["tis"] = "tis"
    level: Level = "token"
    """A weight per token; or one for all tokens of a trajectory: the product, or the geometric mean
    of its ratios."""
    cap: PositiveFloat = 2.0
    """Weights above it are cut to it."""
    floor: NonNegativeFloat = 0.0
    """Weights below it are raised to it."""
    normalise: bool = False
    """Divide by the mean weight of the optimiser step, over tokens or over sequences."""


class MaskedCorrection(ConfigSection):
    """IcePop: importance weights, and 0 where they are out of bounds."""

    name: Literal["icepop"] = "icepop"
    level: Level = "token"
    """As in `tis`; what is out of bounds is then a token or a trajectory."""
    low: NonNegativeFloat = 0.5
    """A weight below it becomes 0."""
    high: PositiveFloat = 5.0
    """A weight above it becomes 0."""
    normalise: bool = False
    """Divide by the mean weight of the optimiser step, over tokens or over sequences."""


class FlooredCorrection(ConfigSection):
    """PPO-EWMA's: the whole weight, with current over behaviour bounded from above."""

    name: Literal["floored"] = "floored"
    limit: float = Field(default=100.0, gt=1)
    """Behaviour log-probs are raised to log(current / limit)."""


AnyCorrection = Annotated[
    NoCorrection | TruncatedCorrection | MaskedCorrection | FlooredCorrection | CustomMethod,
    Field(discriminator="name"),
]
