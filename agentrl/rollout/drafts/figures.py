"""How much drafts have saved, as numbers for the metrics."""

from dataclasses import dataclass

from agentrl.rollout.drafts.draft import Draft


@dataclass(slots=True)
class DraftFigures:
    """Counts since the last call of `take`."""

    trajectories: int = 0
    drafts: int = 0
    """Trajectories that had one."""
    whole: int = 0
    """Of those, the ones that stood to their end and were not gone on with."""
    reused_tokens: int = 0

    def add(self, draft: Draft | None, *, reused: int, sampled: int) -> None:
        """Count a trajectory that ended, with the draft it began with."""
        self.trajectories += 1
        self.drafts += draft is not None
        self.whole += draft is not None and reused > 0 and sampled == 0
        self.reused_tokens += reused

    def take(self) -> dict[str, float]:
        """Return the figures, and begin again.

        `skip_ratio` is the share of all trajectories that were reused whole, `mean_cut` the tokens
        that stood per draft.
        """
        counted = {
            "drafts/found": float(self.drafts),
            "drafts/skip_ratio": self.whole / max(1, self.trajectories),
            "drafts/mean_cut": self.reused_tokens / max(1, self.drafts),
            "drafts/saved_tokens": float(self.reused_tokens),
        }
        self.trajectories = self.drafts = self.whole = self.reused_tokens = 0
        return counted
