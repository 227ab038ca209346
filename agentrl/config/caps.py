"""Keys of the length schedule."""

from typing import Literal

from pydantic import PositiveInt

from agentrl.config.section import ConfigSection


class ScheduleSection(ConfigSection):
    """Periodic schedule of the length limits (SIRI): limits on turns and trajectories tighten, then
    relax again. A trajectory keeps the limits of the step at which it started; evaluations use the
    full limits."""

    wave: Literal["cosine", "stair", "stair_cosine"] = "cosine"
    """Course of the limits within a period. `cosine`: from full to minimum and back along a cosine;
    `stair`: first minimum, then full; `stair_cosine`: a cosine that stays at either end for a
    quarter of the period."""
    period_steps: PositiveInt = 640
    """Length of one period, in training steps."""
    min_turn_tokens: PositiveInt | None = None
    """Minimum of `sampling.max_turn_tokens`; null leaves that key unscheduled."""
    min_turns: PositiveInt | None = None
    """Minimum of `rollout.max_turns`; null leaves that key unscheduled."""
