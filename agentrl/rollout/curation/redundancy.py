"""More asked for than needed, the first to end are taken: who they are, and what that prefers.

Source: RollArt and ROLL's redundant environments. First come, first served prefers short
trajectories; the figures here say by how much.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agentrl.rollout.curation.outcomes import Result, mean


def first_complete(
    results: Sequence[Result], *, wanted: int
) -> tuple[tuple[Result, ...], tuple[Result, ...]]:
    """Return the first `wanted` results with a reward, and the other ones that have a reward.

    `results` are in the order they ended. Failures are neither: they take no place.
    """
    valid = [result for result in results if result.reward is not None]
    return tuple(valid[:wanted]), tuple(valid[wanted:])


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthBias:
    """Sampled tokens per trajectory of those taken, and of those left behind."""

    taken_tokens: float
    left_tokens: float
    """A lower bound where trajectories were stopped on the way."""

    @property
    def ratio(self) -> float:
        """Return taken over left; below 1, short trajectories are preferred."""
        return self.taken_tokens / self.left_tokens if self.left_tokens else 1.0


def length_bias(taken: Iterable[int], left: Iterable[int]) -> LengthBias | None:
    """Return the bias, from tokens per trajectory; None when nothing was taken or left."""
    taken_mean, left_mean = mean(taken), mean(left)
    if taken_mean is None or left_mean is None:
        return None
    return LengthBias(taken_tokens=taken_mean, left_tokens=left_mean)
