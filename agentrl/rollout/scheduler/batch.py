"""Batch for the trainer, the age of its tokens, and the length bias of how it came to be."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentrl.rollout.scheduler.member import QueuedGroup
from agentrl.trajectory import Tree

if TYPE_CHECKING:
    from numpy import ndarray

NOT_SAMPLED = -1
"""The version of a token that the policy did not sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutBatch:
    """Batch for the trainer: complete groups, and the rule which of their tokens may train."""

    groups: tuple[QueuedGroup, ...]
    trees: tuple[Tree, ...]
    """One per group, with the leaves it trains on and the failures it carries."""
    version: int
    oldest: int
    """No token that comes later was sampled by an older version."""
    max_age: int | None

    def trainable(self, versions: "ndarray") -> "ndarray":
        """Return per token whether it may train now: sampled, and within its age bound."""
        return trainable(versions, version=self.version, max_age=self.max_age)

    def ages(self) -> dict[int, int]:
        """Return the number of sampled tokens of each age."""
        runs = (t.versions for tree in self.trees for t in tree.trajectories())
        return age_histogram(runs, version=self.version)


def trainable(versions: "ndarray", *, version: int, max_age: int | None) -> "ndarray":
    """Return per token whether it may train at `version`: sampled, and not older than `max_age`.

    A token's age is the versions between the weights that sampled it and those it would train.
    """
    is_sampled = versions != NOT_SAMPLED
    return is_sampled if max_age is None else is_sampled & (version - versions <= max_age)


def age_histogram(versions: Iterable[Sequence[int]], *, version: int) -> dict[int, int]:
    """Return the number of sampled tokens of each age, youngest first."""
    ages = Counter(version - v for run in versions for v in run if v != NOT_SAMPLED)
    return dict(sorted(ages.items()))


@dataclass(slots=True)
class RolloutLengthBias:
    """First come, first kept prefers short trajectories; these sums say by how much.

    Owned by the runner. An aborted trajectory counts with what it had when it was stopped, so its
    true length is longer and the true bias larger.
    """

    kept: int = 0
    kept_tokens: int = 0
    aborted: int = 0
    aborted_tokens: int = 0

    def keep(self, tokens: int) -> None:
        """Count a trajectory of a group that became complete."""
        self.kept += 1
        self.kept_tokens += tokens

    def abort(self, tokens: int) -> None:
        """Count a trajectory stopped because its group was complete without it."""
        self.aborted += 1
        self.aborted_tokens += tokens

    def figures(self) -> dict[str, float]:
        """Return mean sampled tokens of kept and aborted ones; nothing if none was aborted."""
        if not self.aborted or not self.kept:
            return {}
        return {
            "redundancy/aborted_fraction": self.aborted / (self.kept + self.aborted),
            "redundancy/kept_tokens_mean": self.kept_tokens / self.kept,
            "redundancy/aborted_tokens_mean": self.aborted_tokens / self.aborted,
        }
