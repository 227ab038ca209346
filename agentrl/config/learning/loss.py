"""The loss slot: what a token costs, given its ratio and its advantage."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from agentrl.config.learning.aggregation import Aggregation
from agentrl.config.learning.custom import CustomMethod
from agentrl.config.section import Section


class LossSection(Section):
    """A loss, and the aggregation its source defines it with."""

    AGGREGATION: ClassVar[Aggregation] = "token-mean"


class PpoClipLoss(LossSection):
    """PPO's clipped objective with clip-higher and dual clip."""

    name: Literal["ppo_clip"] = "ppo_clip"
    clip_low: float = Field(default=0.2, ge=0, le=1)
    """A ratio below 1 - this earns nothing more."""
    clip_high: float = Field(default=0.2, ge=0)
    """A ratio above 1 + this earns nothing more."""
    dual_clip: float | None = Field(default=3.0, gt=1)
    """Bound of the ratio for negative advantages; null turns it off."""


AnyLoss = Annotated[PpoClipLoss | CustomMethod, Field(discriminator="name")]


def aggregation_of(section: AnyLoss) -> Aggregation:
    """Return the aggregation a loss comes with, which is token-mean unless its source fixes one."""
    return "token-mean" if isinstance(section, CustomMethod) else section.AGGREGATION
