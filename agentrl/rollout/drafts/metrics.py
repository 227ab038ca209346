"""Metrics of draft reuse."""

from dataclasses import dataclass
from typing import Self

from agentrl.rollout.drafts.draft import DraftTrajectory


@dataclass(slots=True)
class DraftMetrics:
    """Counts since the last call of `take`."""

    trajectories: int = 0
    drafts: int = 0
    """Trajectories that had one."""
    whole: int = 0
    """Of those, the ones that stood to their end and were not gone on with."""
    reused_tokens: int = 0

    @classmethod
    def of(cls, draft: DraftTrajectory | None, *, reused: int, sampled: int) -> Self:
        """Return the counts of one trajectory that ended, with the draft it began with."""
        has_draft = draft is not None
        whole = has_draft and reused > 0 and sampled == 0
        return cls(trajectories=1, drafts=int(has_draft), whole=int(whole), reused_tokens=reused)

    def add(self, other: "DraftMetrics") -> None:
        """Count what others have counted."""
        self.trajectories += other.trajectories
        self.drafts += other.drafts
        self.whole += other.whole
        self.reused_tokens += other.reused_tokens

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
