"""The advantage slot: credit of every token of every trajectory."""

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat

from agentrl.config.learning.custom import CustomMethod
from agentrl.config.section import Section


class GrpoAdvantage(Section):
    """GRPO: reward minus the group's mean, over its standard deviation."""

    name: Literal["grpo"] = "grpo"
    normalise_std: bool = True
    """Off gives Dr.GRPO's centred reward."""
    epsilon: PositiveFloat = 1e-6
    """Added to the standard deviation."""
    singleton: Literal["zero", "raw"] = "zero"
    """Advantage of a group of one trajectory."""


AnyAdvantage = Annotated[GrpoAdvantage | CustomMethod, Field(discriminator="name")]
