"""The reward shaping slot: changes rewards before advantages are computed."""

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from agentrl.config.section import ConfigSection, CustomMethod

FIRST_ERROR_TURN = "first_error_turn"
"""The reward component with the first wrong turn, or `SOUND`."""


class OverlongShaping(ConfigSection):
    """DAPO's soft overlong punishment: beyond a certain length, the reward decreases with every
    token."""

    name: Literal["overlong"] = "overlong"
    limit_tokens: PositiveInt = 20480
    """Length at which the full penalty applies."""
    buffer_tokens: PositiveInt = 4096
    """Number of tokens before the limit at which the penalty starts."""
    penalty: PositiveFloat = 1.0
    """Maximum deduction, at the limit and beyond."""
    counts: Literal["sampled", "context"] = "sampled"
    """Tokens that count towards the length: only sampled tokens, or the whole context."""


class FapoShaping(ConfigSection):
    """FAPO: right and wrong answers get fixed rewards, and a right answer reached through a wrong
    step gets less. A judge in the environment marks wrong steps; trajectories without a verdict
    count as sound."""

    name: Literal["fapo"] = "fapo"
    component: str = FIRST_ERROR_TURN
    """Reward component with the judge's verdict: the index of the first wrong turn, or -1 for
    none."""
    right_above: float = 0.0
    """Answers with a reward above this are right."""
    right: float = 1.0
    """Reward of a right answer."""
    wrong: float = -1.0
    """Reward of a wrong answer."""
    flaw: PositiveFloat = 1.0
    """Deduction for a right answer reached through a wrong step."""


AnyShaping = Annotated[OverlongShaping | FapoShaping | CustomMethod, Field(discriminator="name")]
