"""Config section of the split guard."""

from pydantic import Field, PositiveInt

from agentrl.config.section import ConfigSection


class SplitGuardSection(ConfigSection):
    """Guard against held-out tasks that leak into training, exactly or nearly."""

    allow: bool = False
    """Continue even if splits overlap."""
    train_tasks: PositiveInt = 1000
    """Number of train tasks to compare before a run; the rest are compared for exact matches as
    they are drawn."""
    similarity: float = Field(default=0.8, gt=0, le=1)
    """Minimum fraction of shared word trigrams at which two tasks count as near-duplicates."""
    max_near_fraction: float = Field(default=0.2, ge=0, le=1)
    """Maximum fraction of held-out tasks with a near-duplicate before a run is refused."""
