"""Step 5 of the flow: pure decisions about what runs, runs again, and stops the run."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from agentrl.errors import AgentrlError
from agentrl.trajectory import Failed, Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """What a training step is, and what happens between steps."""

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
class Attempt:
    """One try at one trajectory of a step."""

    group: int
    """Index of its task within the step."""
    sample: int
    """Index of the trajectory within its group."""
    number: int = 0
    """0 is the first try."""


def plan(tasks: int, group_size: int) -> tuple[Attempt, ...]:
    """Return the first tries of a step, the groups side by side.

    Sample 0 of every task comes before sample 1 of any: when concurrency is short, the first
    samples compute the prompts that the later ones reuse.
    """
    return tuple(
        Attempt(group=group, sample=sample)
        for sample in range(group_size)
        for group in range(tasks)
    )


def tries_again(outcome: Outcome, attempt: Attempt, *, retries: int) -> bool:
    """Return whether a trajectory is started again: alone, and only after a failure."""
    return isinstance(outcome, Failed) and outcome.kind != "cancelled" and attempt.number < retries


class TooManyFailures(AgentrlError):
    """More trajectories failed for good than the run tolerates."""


def check_failures(outcomes: Sequence[Outcome], *, max_failed_fraction: float) -> None:
    """Raise `TooManyFailures` when the failed share of a step is above its bound.

    The error counts the failures by kind and shows the most frequent text of each.
    """
    failed = [outcome for outcome in outcomes if isinstance(outcome, Failed)]
    if not failed or len(failed) <= max_failed_fraction * len(outcomes):
        return
    kinds = Counter(failure.kind for failure in failed)
    examples = "; ".join(
        f"{count} x {kind}, mostly: "
        + Counter(f.error for f in failed if f.kind == kind).most_common(1)[0][0]
        for kind, count in kinds.most_common()
    )
    raise TooManyFailures(
        f"{len(failed)} of {len(outcomes)} trajectories of a step failed ({examples}), and "
        f"rollout.max_failed_fraction allows {max_failed_fraction:.0%}; mend the cause, or raise "
        "that bound"
    )
