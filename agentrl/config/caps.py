"""The keys of the schedule of lengths."""

from typing import Literal

from pydantic import PositiveInt

from agentrl.config.section import ConfigSection


class ScheduleSection(ConfigSection):
    """SIRI: turns and trajectories are cut short for a while and may be long again after, over and
    over. What is begun at a step keeps the limits of that step; evaluations have the full ones."""

    wave: Literal["cosine", "stair", "stair_cosine"] = "cosine"
    """From the full limit to the least and back: along a cosine; at once, the least first; or along
    a cosine that rests at either end for a quarter of the period."""
    period_steps: PositiveInt = 640
    """Steps until it begins again."""
    min_turn_tokens: PositiveInt | None = None
    """The least `sampling.max_turn_tokens`; null leaves that key as it is."""
    min_turns: PositiveInt | None = None
    """The least `rollout.max_turns`; null leaves that key as it is."""
