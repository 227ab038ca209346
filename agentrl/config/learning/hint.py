"""The hint slot: the prompt after which a trajectory trains that was sampled with a hint."""

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat

from agentrl.config.section import ConfigSection, CustomMethod


class RemovedHint(ConfigSection):
    """The tokens that were sampled after the prompt with the hint train after the one without it.
    The correction weights them by the ratio of both."""

    name: Literal["remove"] = "remove"


class DistilledHint(ConfigSection):
    """NudgeRL's second term: beside its own loss, every trajectory has -advantage x log-prob after
    the prompt without a hint, a mean over its tokens, without a ratio and without a clip."""

    name: Literal["distill"] = "distill"
    coefficient: PositiveFloat = 0.1
    """Weight of the term; 0.1 in NudgeRL's configs, 0.01 in its class."""


AnyHint = Annotated[RemovedHint | DistilledHint | CustomMethod, Field(discriminator="name")]
