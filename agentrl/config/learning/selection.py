"""The selection slot: which samples and tokens of a batch train, once their credit is known."""

from typing import Annotated, Literal

from pydantic import Field

from agentrl.config.learning.custom import CustomMethod
from agentrl.config.section import ConfigSection

Share = Annotated[float, Field(gt=0, le=1)]


class D3sSelection(ConfigSection):
    """D3S: the trajectories of the batch whose advantages are furthest apart, and of their tokens
    those with the most |advantage| x entropy. Nothing else is in any denominator, and the ratio of
    a whole sequence is that of its kept tokens."""

    name: Literal["d3s"] = "d3s"
    samples: tuple[Share, Share] = (0.25, 1.0)
    """Share of the trajectories that train: at the first step, and after the last of `run.steps`;
    even steps between. Never fewer than two."""
    tokens: tuple[Share, Share] = (0.2, 1.0)
    """The same of the tokens of those trajectories. Never fewer than one."""


class OverlongSelection(ConfigSection):
    """DAPO's overlong filter: a trajectory that a limit cut off is in its group's baseline, and
    does not train."""

    name: Literal["overlong"] = "overlong"


AnySelection = Annotated[
    D3sSelection | OverlongSelection | CustomMethod, Field(discriminator="name")
]
