"""The reward shaping slot: what a trajectory's reward is for those that give credit."""

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from agentrl.authoring.step_judge import FIRST_ERROR_TURN
from agentrl.config.learning.custom import CustomMethod
from agentrl.config.section import ConfigSection


class OverlongShaping(ConfigSection):
    """DAPO's soft overlong punishment: from some length on, the reward falls with every token."""

    name: Literal["overlong"] = "overlong"
    limit_tokens: PositiveInt = 20480
    """Length at which the whole penalty is taken off."""
    buffer_tokens: PositiveInt = 4096
    """So many tokens before it the penalty begins."""
    penalty: PositiveFloat = 1.0
    """Deduction at the limit and beyond."""
    counts: Literal["sampled", "context"] = "sampled"
    """Tokens that count as length: those that the policy sampled, or the whole context."""


class FapoShaping(ConfigSection):
    """FAPO: right and wrong get fixed rewards, and a right answer that came of a wrong step less.
    A judge in the environment says so; what none was asked about counts as sound."""

    name: Literal["fapo"] = "fapo"
    component: str = FIRST_ERROR_TURN
    """The reward component with the judge's verdict: the first wrong turn, or -1 for none."""
    right_above: float = 0.0
    """A reward above this is right."""
    right: float = 1.0
    """Reward of a right answer."""
    wrong: float = -1.0
    """Reward of a wrong answer."""
    flaw: PositiveFloat = 1.0
    """Deduction for a right answer that came of a wrong step."""


AnyShaping = Annotated[OverlongShaping | FapoShaping | CustomMethod, Field(discriminator="name")]
