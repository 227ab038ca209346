"""Config section of the training diagnostics."""

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt

from agentrl.config.section import ConfigSection


class DiagnosticsSection(ConfigSection):
    """Diagnostics that warn once, with advice, when training shows signs of failure."""

    action: Literal["stop", "warn", "none"] = "warn"
    """`stop` writes a checkpoint and ends the run; `warn` prints a warning once and continues."""
    window: PositiveInt = 10
    """Number of steps over which a metric is averaged."""
    zero_advantage: float = Field(default=0.9, ge=0, le=1)
    """Maximum fraction of trajectories with zero advantage."""
    entropy_left: float = Field(default=0.1, ge=0, le=1)
    """Minimum entropy relative to the first window."""
    heldout_drop: PositiveFloat = 0.1
    """Maximum drop of the held-out reward below its best value while the training reward rises."""
    length_growth: PositiveFloat = 2.0
    """Maximum growth of trajectory length relative to the first window without a gain in reward."""
    reward_gain: float = Field(default=0.02, ge=0)
    """Minimum increase that counts as a gain in reward."""
    other_task_likeness: float = Field(default=0.8, ge=0, le=1)
    """Maximum similarity of trajectories of different tasks without a gain in reward."""
    component_left: float = Field(default=0.5, ge=0, le=1)
    """Minimum of a reward component relative to its first window while the reward rises; 0 disables
    the check."""
