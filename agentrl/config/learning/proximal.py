"""The proximal slot: the policy that the clip is anchored to."""

from typing import Annotated, Literal

from pydantic import Field

from agentrl.config.learning.custom import CustomMethod
from agentrl.config.section import Section


class RecomputedProximal(Section):
    """The trainer's weights at batch start: one more forward pass if the batch makes several
    optimiser steps."""

    name: Literal["recompute"] = "recompute"


class BehaviourProximal(Section):
    """The policy that sampled, as the engine reported it: the ratio is current over behaviour, and
    a correction has nothing left to correct."""

    name: Literal["behaviour"] = "behaviour"


AnyProximal = Annotated[
    RecomputedProximal | BehaviourProximal | CustomMethod, Field(discriminator="name")
]
