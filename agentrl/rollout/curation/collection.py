"""The groups that ended in one step."""

from dataclasses import dataclass

from agentrl.rollout.curation.dapo import Verdict
from agentrl.rollout.curation.outcomes import GroupOutcome

DROPPED: tuple[Verdict, ...] = ("all_right", "all_wrong", "even", "too_easy", "too_few")


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedGroup:
    """A finished group and what became of it."""

    group: GroupOutcome
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCollection:
    """Groups that ended in a step. Values that JSON can hold."""

    step: int
    judged: tuple[JudgedGroup, ...] = ()
    """In the order they ended."""
    rounds: int = 0

    @property
    def kept(self) -> tuple[GroupOutcome, ...]:
        """Groups that may train, in the order they ended."""
        return tuple(j.group for j in self.judged if j.verdict == "kept")
