"""The selection slot: which samples and tokens of a batch train, given their advantages."""

from typing import Annotated, Literal

from pydantic import Field

from agentrl.config.section import ConfigSection, CustomMethod

Share = Annotated[float, Field(gt=0, le=1)]


class D3sSelection(ConfigSection):
    """D3S: the trajectories of the batch with the most extreme advantages, and among their tokens
    those with the highest |advantage| x entropy. Denominators count only what is kept, and the
    ratio of a whole sequence is that of its kept tokens."""

    name: Literal["d3s"] = "d3s"
    samples: tuple[Share, Share] = (0.25, 1.0)
    """Fraction of trajectories that train, at the first step and after the last one of `run.steps`,
    interpolated linearly; at least two."""
    tokens: tuple[Share, Share] = (0.2, 1.0)
    """Fraction of the tokens of those trajectories that train, interpolated likewise; at least
    one."""


class OverlongSelection(ConfigSection):
    """DAPO's overlong filter: a trajectory truncated by a limit counts in its group's baseline but
    does not train."""

    name: Literal["overlong"] = "overlong"


AnySelection = Annotated[
    D3sSelection | OverlongSelection | CustomMethod, Field(discriminator="name")
]
