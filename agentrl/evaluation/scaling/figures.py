"""Cost and gain of scaling, against one attempt at the same tasks."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from agentrl.evaluation.compare import subtract_paired
from agentrl.evaluation.interval import IntervalEstimate, replace_infinite
from agentrl.evaluation.scaling.attempt import ScalingResult
from agentrl.evaluation.scores import ScoringRules, passes
from agentrl.trajectory import reward_of


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSolution:
    """A task, what a method made of it, and what that cost."""

    solved: ScalingResult
    plain: int
    """Number of attempts, the first ones, that knew nothing of others."""
    attempt_tokens: int
    """Sampled in all attempts."""
    asked_tokens: int
    """Sampled for notes, votes and plans."""
    money: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingReport:
    """The figures of a scaled evaluation beside those of its report."""

    method: str
    plain: IntervalEstimate | None
    """pass@1 of one attempt that knows nothing of others; None where all of them broke."""
    gain: IntervalEstimate | None
    """The submitted attempt's passes less that, paired by task."""
    costs: Mapping[str, float]
    notes: Sequence[Mapping[str, Any]]

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON."""
        return {
            "method": self.method,
            "plain": None if self.plain is None else replace_infinite(asdict(self.plain)),
            "gain": None if self.gain is None else replace_infinite(asdict(self.gain)),
            "costs": dict(self.costs),
            "tasks": [dict(one) for one in self.notes],
        }


def build_scaling(
    method: str, solutions: Sequence[TaskSolution], rules: ScoringRules
) -> ScalingReport:
    """Return the figures of a method on some tasks; attempts that broke are in no rate."""
    rewards: list[list[float]] = []
    away: list[float] = []
    for one in solutions:
        plain = _rewards(one)
        if plain:
            rewards.append(plain)
        submitted = reward_of(one.solved.chosen.trajectory.outcome)
        if plain and submitted is not None:
            share = fmean(reward >= rules.threshold for reward in plain)
            away.append((submitted >= rules.threshold) - share)
    return ScalingReport(
        method=method,
        plain=passes(rewards, rules) if rewards else None,
        gain=subtract_paired(away, trials=1, confidence=rules.confidence) if away else None,
        costs=_costs(solutions),
        notes=[
            {"task": one.solved.chosen.trajectory.task.id} | dict(one.solved.notes)
            for one in solutions
        ],
    )


def _rewards(one: TaskSolution) -> list[float]:
    plain = one.solved.attempts[: one.plain]
    rewards = [reward_of(attempt.trajectory.outcome) for attempt in plain]
    return [reward for reward in rewards if reward is not None]


def _costs(solutions: Sequence[TaskSolution]) -> dict[str, float]:
    every = [sum(a.trajectory.mask) for one in solutions for a in one.solved.attempts[: one.plain]]
    tokens = fmean(one.attempt_tokens + one.asked_tokens for one in solutions)
    costs = {
        "attempts per task": fmean(len(one.solved.attempts) for one in solutions),
        "tokens per task": tokens,
        "of which notes, votes, and plans": fmean(one.asked_tokens for one in solutions),
    }
    if (once := fmean(every)) > 0:
        costs["relative to one attempt"] = tokens / once
    if any(one.money for one in solutions):
        costs["cost per task"] = fmean(one.money for one in solutions)
    return costs
