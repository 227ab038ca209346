"""Config of the guard between the splits of an environment."""

from pydantic import Field, PositiveInt

from agentrl.config.section import ConfigSection


class SplitGuardSection(ConfigSection):
    """Guard against held-out tasks that train, as they are or nearly so."""

    allow: bool = False
    """Go on although splits overlap."""
    train_tasks: PositiveInt = 1000
    """Train tasks that are compared before a run; the others are compared exactly as they come."""
    similarity: float = Field(default=0.8, gt=0, le=1)
    """Share of their own words, in runs of three, from which on two tasks are nearly the same."""
    max_near_fraction: float = Field(default=0.2, ge=0, le=1)
    """A run is refused when more of the held-out tasks than this have a near-duplicate."""
