"""The moving average of the policy."""

from pydantic import Field

from agentrl.config.section import ConfigSection


class EmaSection(ConfigSection):
    """Exponential moving average of the weights, in float32, used by evaluations and saved in
    `ema/` of a checkpoint. Training trajectories are sampled with the current weights."""

    decay: float = Field(default=0.99, ge=0, lt=1)
    """Fraction of the average that is kept at each update; 0 tracks the current weights."""
