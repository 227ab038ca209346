"""The keys of the schedule of lengths, and what they have to agree with."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from pydantic import PositiveInt

from agentrl.config.section import ConfigSection

if TYPE_CHECKING:
    from agentrl.config.run import RunConfig


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


def schedule_conflicts(config: "RunConfig") -> Iterator[str]:
    """Yield what the schedule of lengths and the rest of a config cannot do together."""
    schedule, branching = config.rollout.schedule, config.rollout.branching
    if schedule is None:
        return
    least = {
        "min_turn_tokens": (schedule.min_turn_tokens, "sampling.max_turn_tokens"),
        "min_turns": (schedule.min_turns, "rollout.max_turns"),
    }
    limits = {
        "min_turn_tokens": config.sampling.max_turn_tokens,
        "min_turns": config.rollout.max_turns,
    }
    if all(value is None for value, _ in least.values()):
        yield (
            "rollout.schedule has neither min_turn_tokens nor min_turns, and nothing would change; "
            "set one of them, or leave the section out"
        )
    for key, (value, limit) in least.items():
        if value is not None and value >= limits[key]:
            yield (
                f"rollout.schedule.{key} is {value} and {limit} is {limits[key]}, which is the "
                "most: nothing would change; lower the first, or leave it out"
            )
    tokens = schedule.min_turn_tokens
    if tokens is not None and branching.topology != "none" and branching.probe_tokens >= tokens:
        yield (
            f"rollout.branching.probe_tokens is {branching.probe_tokens} and "
            f"rollout.schedule.min_turn_tokens is {tokens}: a turn must go on after its probe; "
            "lower the first"
        )
