"""Length bias from starting more trajectories than a group needs (ROLL)."""

from dataclasses import dataclass


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
