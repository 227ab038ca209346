"""More asked for than needed, the first to end are taken: what that prefers.

Source: RollArt and ROLL's redundant environments. First come, first served prefers short
trajectories; the figures here say by how much.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from agentrl.rollout.curation.outcomes import mean


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLengthBias:
    """Sampled tokens per trajectory of those taken, and of those left behind."""

    taken_tokens: float
    left_tokens: float
    """A lower bound where trajectories were stopped on the way."""

    @property
    def ratio(self) -> float:
        """Return taken over left; below 1, short trajectories are preferred."""
        return self.taken_tokens / self.left_tokens if self.left_tokens else 1.0


def length_bias(taken: Iterable[int], left: Iterable[int]) -> GroupLengthBias | None:
    """Return the bias, from tokens per trajectory; None when nothing was taken or left."""
    taken_mean, left_mean = mean(taken), mean(left)
    if taken_mean is None or left_mean is None:
        return None
    return GroupLengthBias(taken_tokens=taken_mean, left_tokens=left_mean)
