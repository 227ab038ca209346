"""Trajectories in budgeted segments (AgentMath): so far in one step, and on in the next."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentBudget:
    """Budget of one trajectory before it waits for the next version of the weights."""

    tokens: int
    turns: int
    """Turns of one segment; each may call a tool."""
    segments: int
    """Segments of one trajectory; after the last it is truncated."""

    def __post_init__(self) -> None:
        for name in ("tokens", "turns", "segments"):
            if getattr(self, name) < 1:
                raise ValueError(f"segment.{name} must be at least 1, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentUse:
    """Use of a trajectory's budget."""

    index: int = 0
    tokens: int = 0
    turns: int = 0

    def add(self, *, tokens: int, turns: int) -> "SegmentUse":
        """Return the use with so much more of it in the current segment."""
        return SegmentUse(index=self.index, tokens=self.tokens + tokens, turns=self.turns + turns)

    def next(self) -> "SegmentUse":
        """Return the beginning of the next segment."""
        return SegmentUse(index=self.index + 1)


def segment_verdict(
    use: SegmentUse, budget: SegmentBudget
) -> Literal["goes_on", "waits", "truncated"]:
    """Return the verdict on a trajectory before its next request."""
    if use.tokens < budget.tokens and use.turns < budget.turns:
        return "goes_on"
    return "waits" if use.index + 1 < budget.segments else "truncated"


def find_segment_use(turns: Sequence[int], budget: SegmentBudget, *, begun: int = 0) -> SegmentUse:
    """Return the use of a trajectory that has sampled so many tokens in each of its turns.

    `begun` are the tokens of a turn that is not complete.
    """
    use = SegmentUse()
    for tokens in turns:
        use = _sample_turn(use, tokens, budget).add(tokens=0, turns=1)
    return _sample_turn(use, begun, budget)


def _sample_turn(use: SegmentUse, tokens: int, budget: SegmentBudget) -> SegmentUse:
    while tokens > 0:
        match segment_verdict(use, budget):
            case "waits":
                use = use.next()
            case "truncated":
                return use
            case "goes_on":
                count = min(tokens, budget.tokens - use.tokens)
                use, tokens = use.add(tokens=count, turns=0), tokens - count
    return use
