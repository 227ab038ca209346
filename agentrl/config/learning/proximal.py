"""The proximal slot: the policy that the clip is anchored to."""

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from agentrl.config.learning.custom import CustomMethod
from agentrl.config.section import ConfigSection


class RecomputedProximal(ConfigSection):
    """The trainer's weights at batch start: one more forward pass if the batch makes several
    optimiser steps."""

    name: Literal["recompute"] = "recompute"


class BehaviourProximal(ConfigSection):
    """The policy that sampled, as the engine reported it: the ratio is current over behaviour, and
    a correction has nothing left to correct."""

    name: Literal["behaviour"] = "behaviour"


class CurrentProximal(ConfigSection):
    """The policy that is being optimised: no ratio ever leaves 1, and the correction weighs current
    over behaviour, which makes any loss the policy gradient with importance weights."""

    name: Literal["current"] = "current"


class LogLinearProximal(ConfigSection):
    """Between behaviour and current in log-probs, by the age of each token; no forward pass."""

    name: Literal["log_linear"] = "log_linear"
    lag: PositiveInt = 1
    """Versions by which the anchor lies behind the trainer."""


class LinearProximal(ConfigSection):
    """Between behaviour and current in probabilities, by the age of each token; no forward pass."""

    name: Literal["linear"] = "linear"
    lag: PositiveInt = 1
    """Versions by which the anchor lies behind the trainer."""


class EwmaProximal(ConfigSection):
    """PPO-EWMA: a moving average of the weights over past optimiser steps, and one more forward
    pass in each of them. With `correction: {name: floored}` it is the published loss."""

    name: Literal["ewma"] = "ewma"
    beta: float = Field(default=0.889, ge=0, lt=1)
    """Decay of the average per optimiser step; a higher one keeps older weights longer."""
    on_cpu: bool = False
    """Keep the average, a copy of the weights in float32, in the host's memory."""


class RevisedEwmaProximal(ConfigSection):
    """A moving average of the weights over versions, from the middle of those that sampled; one
    more forward pass per batch."""

    name: Literal["revised_ewma"] = "revised_ewma"
    window_versions: PositiveInt = 4
    """The oldest age to expect, such as `rollout.max_staleness`; beta is window / (window + 2)."""
    reset_below: float = Field(default=0.9, ge=0, le=1)
    """Begin the average anew where a smaller share of tokens is neither clipped nor masked."""
    on_cpu: bool = False
    """Keep the average, a copy of the weights in float32, in the host's memory."""


class SnapshotProximal(ConfigSection):
    """The trainer's own log-probs under the weights that sampled each token, which are kept: one
    more forward pass per version in a batch."""

    name: Literal["snapshot"] = "snapshot"
    versions: PositiveInt = 8
    """Most past versions that are kept, a copy of the weights each, in the host's memory; older
    tokens get the oldest one. What no token in flight needs goes earlier."""


AnyProximal = Annotated[
    RecomputedProximal
    | BehaviourProximal
    | CurrentProximal
    | LogLinearProximal
    | LinearProximal
    | EwmaProximal
    | RevisedEwmaProximal
    | SnapshotProximal
    | CustomMethod,
    Field(discriminator="name"),
]
