"""Step 5 of the flow: pure decisions about what runs, runs again, and stops the run."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from agentrl.errors import AgentrlError
from agentrl.trajectory import Failed, Leaf, Outcome, Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSchedule:
    """Size of the training steps, and the work between them."""

    steps: int
    tasks_per_step: int
    group_size: int
    max_failed_fraction: float
    checkpoint_every: int
    evaluate_every: int
    """0 evaluates before and after the run only."""

    def checkpoints_after(self, step: int) -> bool:
        """Return whether a checkpoint follows a step; steps are counted from 1."""
        return step % self.checkpoint_every == 0 or step == self.steps

    def evaluates_after(self, step: int) -> bool:
        """Return whether an evaluation follows a step; the last one has its own."""
        return self.evaluate_every > 0 and step % self.evaluate_every == 0 and step < self.steps


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutKey:
    """One try at one trajectory of a step."""

    group: int
    sample: int
    number: int = 0
    """0 is the first try."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupProgress:
    """Progress of the trajectories of one task."""

    number: int
    """Counted over the run, in the order groups are opened."""
    target: int
    """Number of trajectories the group trains on."""
    started: int = 0
    """Trajectories ever begun or queued, forks among them; a retry is the same one."""
    live: int = 0
    """Of those, the ones that have not ended: queued, running or parked."""
    valid: int = 0
    failed: int = 0


class RolloutTopology(Protocol):
    """Rule that starts the trajectories of a group. One for all groups of a run.

    Inherit from it: all but `count_missing` is for topologies that remember what they hear.
    """

    def count_missing(self, group: GroupProgress) -> int:
        """Return the number of trajectories to start from the prompt; asked after every event."""
        ...

    def end_rollout(self, attempt: RolloutKey, leaf: Leaf) -> None:
        """Hear that a trajectory ended for good, failures too; `count_missing` is asked next."""

    def close_group(self, group: int) -> None:
        """Hear that a group is handed to the trainer or dropped."""

    def figures(self) -> Mapping[str, float]:
        """Return metrics of the time since the last call."""
        return {}

    async def close(self) -> None:
        """Release everything; no trajectory runs any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndependentRollouts(RolloutTopology):
    """Independent trajectories, all started at once; `redundancy` more than the group needs."""

    redundancy: int = 0

    def count_missing(self, group: GroupProgress) -> int:
        return max(0, group.target + self.redundancy - group.started)


GroupEnd = tuple[GroupProgress, Sequence[Leaf]]
"""A complete group and its leaves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutHooks:
    """Callbacks for a run's trajectories, on the event loop: durability, curation, traces.

    An error raised here stops the run.
    """

    on_turn: Callable[[RolloutKey, Tree], None] = lambda attempt, tree: None
    """A turn is complete and on the tree; the next request has not been made."""
    on_finished: Callable[[RolloutKey, Tree, Leaf], None] = lambda attempt, tree, leaf: None
    """A trajectory ended for good, failures among them; it is not on the tree yet."""
    more: Callable[[Sequence[GroupEnd]], Sequence[int]] = lambda groups: [0] * len(groups)
    """Groups are complete; how many trajectories each gets on top before `on_group` hears of it.
    Asked again when those have ended."""
    more_by_step: bool = False
    """`more` is asked about all open groups at once, when all are complete, until it adds nothing;
    else about each alone. For `sync`, where a step's groups are open together."""
    on_group: Callable[[GroupProgress, Sequence[Leaf]], bool] = lambda group, leaves: True
    """A group is complete; False drops it, and another one takes its place."""


def tries_again(outcome: Outcome, attempt: RolloutKey, *, retries: int) -> bool:
    """Return whether a trajectory is started again: alone, and only after a failure."""
    if not isinstance(outcome, Failed) or outcome.kind in ("cancelled", "stale"):
        return False
    return attempt.number < retries


def is_stale(outcome: Outcome) -> bool:
    """Return whether a trajectory became too old to train, which is no fault."""
    return isinstance(outcome, Failed) and outcome.kind == "stale"


class OutOfTasks(AgentrlError):
    """A batch is waited for, nothing runs, and there is no further task."""

    def __init__(self) -> None:
        super().__init__(
            "a step needs groups, but none is running and there are no more tasks; add train tasks "
            "to the environment, or lower rollout.tasks_per_step"
        )


class TooManyFailures(AgentrlError):
    """More trajectories failed for good than the run tolerates."""


def exceeds_share(count: int, share: float, *, total: int) -> bool:
    """Return whether `count` is above a share of `total`, for which 0.29 * 100 is 29."""
    return count > share * total + 1e-9


def check_scored(outcomes: Sequence[Outcome]) -> None:
    """Raise `TooManyFailures` where all trajectories of an evaluation failed: nothing is scored."""
    failed = [outcome for outcome in outcomes if isinstance(outcome, Failed)]
    if failed and len(failed) == len(outcomes):
        raise TooManyFailures(
            f"all {len(failed)} trajectories of the evaluation failed "
            f"({failures_by_kind(failed)}), so there is nothing to score; fix the cause"
        )


def failures_by_kind(failed: Sequence[Failed]) -> str:
    """Count the failures of each kind, with the most frequent text of each."""
    kinds = Counter(failure.kind for failure in failed)
    return "; ".join(
        f"{count} x {kind}, mostly: "
        + Counter(failure.error for failure in failed if failure.kind == kind).most_common(1)[0][0]
        for kind, count in kinds.most_common()
    )


def check_failures(outcomes: Sequence[Outcome], *, max_failed_fraction: float) -> None:
    """Raise `TooManyFailures` when the failed share of a step is above its bound.

    The error counts the failures by kind and shows the most frequent text of each. What became too
    old to train counts neither way. A verifier without a verdict is no failure here: the answer may
    be to blame, and what a policy says must not stop the run.
    """
    outcomes = [outcome for outcome in outcomes if not is_stale(outcome)]
    failed = [
        outcome
        for outcome in outcomes
        if isinstance(outcome, Failed) and outcome.kind != "verifier"
    ]
    if not exceeds_share(len(failed), max_failed_fraction, total=len(outcomes)):
        return
    raise TooManyFailures(
        f"{len(failed)} of {len(outcomes)} trajectories of a step failed "
        f"({failures_by_kind(failed)}), but rollout.max_failed_fraction allows "
        f"{max_failed_fraction:.0%}; fix the cause, or raise that limit"
    )
