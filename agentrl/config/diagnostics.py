"""Config of what is looked at in a run's metrics, and when it is an alarm."""

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt

from agentrl.config.section import ConfigSection


class DiagnosticsSection(ConfigSection):
    """Signs that a run goes wrong, each with advice; said once."""

    action: Literal["stop", "warn", "none"] = "warn"
    """`stop` writes a checkpoint and ends the run; `warn` says it once and goes on."""
    window: PositiveInt = 10
    """Steps that a figure is averaged over."""
    zero_advantage: float = Field(default=0.9, ge=0, le=1)
    """Most of the trajectories' advantages that may be zero."""
    entropy_left: float = Field(default=0.1, ge=0, le=1)
    """Least share of the first window's entropy that has to be left."""
    heldout_drop: PositiveFloat = 0.1
    """Most that the held-out reward may be below its best while the training reward rises."""
    length_growth: PositiveFloat = 2.0
    """Most times longer than in the first window that trajectories may get without more reward."""
    reward_gain: float = Field(default=0.02, ge=0)
    """Less than this is not more reward."""
    other_task_likeness: float = Field(default=0.8, ge=0, le=1)
    """Most that trajectories of different tasks may come to be alike without more reward."""
    component_left: float = Field(default=0.5, ge=0, le=1)
    """Least share of a reward component's first window that has to be left while the reward rises;
    0 looks at none."""
