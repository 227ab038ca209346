"""The correction slot: importance weights of tokens sampled by another policy."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat

from agentrl.config.section import ConfigSection, CustomMethod
from agentrl.errors import ConfigError

Level = Literal["token", "sequence", "geometric"]
"""Ratio per token; or per trajectory: the product of its token ratios, or their geometric mean."""


class NoCorrection(ConfigSection):
    """No correction: the behaviour policy is taken as the proximal policy."""

    name: Literal["none"] = "none"


class TruncatedCorrection(ConfigSection):
    """Truncated importance sampling of proximal over behaviour."""

    name: Literal["tis"] = "tis"
    level: Level = "token"
    """Unit of a weight: one per token (`token`), or one per trajectory: the product (`sequence`) or
    the geometric mean (`geometric`) of its token ratios."""
    cap: PositiveFloat = 2.0
    """Upper bound; larger weights are truncated to it."""
    floor: NonNegativeFloat = 0.0
    """Lower bound; smaller weights are raised to it."""
    normalise: bool = False
    """Divide by the mean weight of the optimiser step, over tokens or over sequences."""


class MaskedCorrection(ConfigSection):
    """IcePop: importance weights that become 0 outside the bounds."""

    name: Literal["icepop"] = "icepop"
    level: Level = "token"
    """Unit of a weight, as in `tis`; tokens or whole trajectories outside the bounds are
    dropped."""
    low: NonNegativeFloat = 0.5
    """Lower bound; smaller weights become 0."""
    high: PositiveFloat = 5.0
    """Upper bound; larger weights become 0."""
    normalise: bool = False
    """Divide by the mean weight of the optimiser step, over tokens or over sequences."""


class FlooredCorrection(ConfigSection):
    """PPO-EWMA's correction: the full importance weight, with current over behaviour bounded from
    above."""

    name: Literal["floored"] = "floored"
    limit: float = Field(default=100.0, gt=1)
    """Upper bound of current over behaviour: behaviour log-probs are raised to log(current /
    limit)."""


AnyCorrection = Annotated[
    NoCorrection | TruncatedCorrection | MaskedCorrection | FlooredCorrection | CustomMethod,
    Field(discriminator="name"),
]


def check_bounds(section: AnyCorrection) -> None:
    """Raise `ConfigError` for a correction whose bounds leave nothing between them."""
    match section:
        case TruncatedCorrection():
            low, high = ("floor", section.floor), ("cap", section.cap)
        case MaskedCorrection():
            low, high = ("low", section.low), ("high", section.high)
        case _:
            return
    if low[1] > high[1]:
        raise ConfigError(
            f"learn.correction.{low[0]} is {low[1]} and learn.correction.{high[0]} is {high[1]}, "
            "so no weight lies between them; lower the first"
        )
