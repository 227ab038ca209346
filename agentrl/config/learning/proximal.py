"""The proximal slot: the policy to which the clip is anchored."""

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from agentrl.config.section import ConfigSection, CustomMethod


class RecomputedProximal(ConfigSection):
    """The trainer's weights at batch start; costs one more forward pass if the batch makes several
    optimiser steps."""

    name: Literal["recompute"] = "recompute"


class BehaviourProximal(ConfigSection):
    """The policy that sampled, with log-probs as reported by the engine: the ratio is current over
    behaviour, and no correction remains."""

    name: Literal["behaviour"] = "behaviour"


class CurrentProximal(ConfigSection):
    """The policy being optimised: ratios stay at 1, and the correction weight is current over
    behaviour, which makes any loss the importance-weighted policy gradient."""

    name: Literal["current"] = "current"


class LogLinearProximal(ConfigSection):
    """Interpolation between behaviour and current in log-probs, by the age of each token; no
    forward pass."""

    name: Literal["log_linear"] = "log_linear"
    lag: PositiveInt = 1
    """Number of versions by which the anchor lags behind the trainer."""


class LinearProximal(ConfigSection):
    """Interpolation between behaviour and current in probabilities, by the age of each token; no
    forward pass."""

    name: Literal["linear"] = "linear"
    lag: PositiveInt = 1
    """Number of versions by which the anchor lags behind the trainer."""


class EwmaProximal(ConfigSection):
    """PPO-EWMA: a moving average of the weights over past optimiser steps; costs one more forward
    pass per optimiser step. With `correction: {name: floored}` it is the published loss."""

    name: Literal["ewma"] = "ewma"
    beta: float = Field(default=0.889, ge=0, lt=1)
    """Decay of the average per optimiser step; higher values keep older weights longer."""
    on_cpu: bool = False
    """Keep the average, a float32 copy of the weights, in host memory."""


class RevisedEwmaProximal(ConfigSection):
    """A moving average of the weights over versions, centred on those that sampled; costs one more
    forward pass per batch."""

    name: Literal["revised_ewma"] = "revised_ewma"
    window_versions: PositiveInt = 4
    """Maximum expected age, such as `rollout.max_staleness`; beta is window / (window + 2)."""
    reset_below: float = Field(default=0.9, ge=0, le=1)
    """Reset the average when the fraction of tokens that are neither clipped nor masked drops below
    this."""
    on_cpu: bool = False
    """Keep the average, a float32 copy of the weights, in host memory."""


class SnapshotProximal(ConfigSection):
    """The trainer's own log-probs under the weights that sampled each token, which are stored;
    costs one more forward pass per version in a batch."""

    name: Literal["snapshot"] = "snapshot"
    versions: PositiveInt = 8
    """Maximum number of stored versions, each a copy of the weights in host memory; older tokens
    use the oldest one. Versions that no token in flight needs are dropped earlier."""


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
