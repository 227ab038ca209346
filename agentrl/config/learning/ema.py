"""The moving average of the policy."""

from pydantic import Field

from agentrl.config.section import ConfigSection


class EmaSection(ConfigSection):
    """An exponential moving average of the weights, in float32: what evaluations play and what a
    checkpoint's `ema/` holds. Trajectories that train are sampled by the weights as they are."""

    decay: float = Field(default=0.99, ge=0, lt=1)
    """Share of the average that is kept at each update; 0 is the weights themselves."""
