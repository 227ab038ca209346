"""The figures of one set of trajectories: passes, mean reward, how they ended, what they cost."""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

from agentrl.errors import ConfigError
from agentrl.evaluation.bootstrap import bootstrap_estimate
from agentrl.evaluation.interval import (
    IntervalEstimate,
    mean_estimate,
    rate_estimate,
    replace_infinite,
)
from agentrl.metrics.rollout_metrics import component_means
from agentrl.trajectory import Trajectory, outcome_name, reward_of

Interval = Literal["wilson", "bootstrap"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringRules:
    """Threshold of a pass, and the estimates and intervals to compute."""

    k: tuple[int, ...]
    threshold: float
    """A trajectory passes when its reward is at least this."""
    confidence: float
    interval: Interval = "wilson"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationScores:
    """The figures of some tasks.

    Scores are over trajectories with a reward, and each task counts once. A failed trajectory has
    no reward: it is counted in `outcomes` and nowhere else. A task without enough rewards for a
    figure is left out of that figure, which says how many tasks it rests on.
    """

    tasks: int
    trajectories: int
    """All of them, failures too."""
    outcomes: Mapping[str, int]
    """Number of trajectories by outcome: `finished`, `truncated_turns`, `failed_tool`, ..."""
    pass_at: Mapping[int, IntervalEstimate]
    """pass@k by k; a k that no task has enough rewards for is missing."""
    all_pass: Mapping[int, IntervalEstimate]
    """pass^k by k > 1; for k = 1 it is pass@1."""
    reward: IntervalEstimate | None
    """None when no trajectory has a reward; so are the costs."""
    costs: Mapping[str, float | None]
    """Means per trajectory with a reward; `component/NAME` are of those that have the component."""

    @property
    def failed(self) -> int:
        """Number of trajectories that broke."""
        return sum(n for name, n in self.outcomes.items() if name.startswith("failed"))

    @property
    def estimates(self) -> dict[str, IntervalEstimate]:
        """Estimates with an interval, by name."""
        named = {f"pass@{k}": estimate for k, estimate in self.pass_at.items()}
        named |= {f"pass^{k}": estimate for k, estimate in self.all_pass.items()}
        return named if self.reward is None else named | {"reward": self.reward}

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON; an unbounded end of an interval is null."""
        estimates = {name: asdict(one) for name, one in self.estimates.items()}
        return {
            "tasks": self.tasks,
            "trajectories": self.trajectories,
            "failed": self.failed,
            "outcomes": dict(self.outcomes),
            "outcome_rates": {name: n / self.trajectories for name, n in self.outcomes.items()},
            **replace_infinite(estimates),
            **self.costs,
        }


def pass_at_k(passed: int, *, samples: int, k: int) -> float:
    """Return the unbiased estimate of pass@k from `passed` passes among `samples` attempts.

    It is 1 - C(samples - passed, k) / C(samples, k): the share of all ways to pick k of the
    attempts that contain a pass (Chen et al. 2021, "Evaluating Large Language Models Trained on
    Code"). The plug-in 1 - (1 - passed / samples)**k is too small on average. Raises `ConfigError`
    for k > samples: then no unbiased estimate exists.
    """
    _check(passed, samples=samples, k=k)
    # Factor by factor, because the binomials themselves overflow a float. With fewer than k
    # failures one factor is 0.
    failures = samples - passed
    return 1 - math.prod((failures - i) / (samples - i) for i in range(k))


def pass_hat_k(passed: int, *, samples: int, k: int) -> float:
    """Return the unbiased estimate of pass^k from `passed` passes among `samples` attempts.

    It is C(passed, k) / C(samples, k): the share of all ways to pick k of the attempts in which
    every one passes (Yao et al. 2024, "tau-bench"). The plug-in (passed / samples)**k is too large
    on average. Raises `ConfigError` for k > samples.
    """
    _check(passed, samples=samples, k=k)
    return math.prod((passed - i) / (samples - i) for i in range(k)) if passed >= k else 0.0


def _check(passed: int, *, samples: int, k: int) -> None:
    if not 1 <= k <= samples:
        raise ConfigError(
            f"pass@{k} of {samples} samples per task: k must be within [1, {samples}]; lower "
            "evaluate.k or raise evaluate.samples_per_task"
        )
    if not 0 <= passed <= samples:
        raise ValueError(f"{passed} of {samples} samples passed; count each sample once")


def score(groups: Sequence[Sequence[Trajectory]], rules: ScoringRules) -> EvaluationScores:
    """Return the figures of `groups`, which hold the trajectories of one task each."""
    every = [trajectory for group in groups for trajectory in group]
    scored = [trajectory for trajectory in every if reward_of(trajectory.outcome) is not None]
    rewards = [task_rewards for task_rewards in map(_rewards, groups) if task_rewards]
    pass_at = {k: passes(rewards, rules, k=k) for k in rules.k}
    all_pass = {k: passes(rewards, rules, k=k, figure=pass_hat_k) for k in rules.k if k > 1}
    components = component_means(one.components for one in scored)
    return EvaluationScores(
        tasks=len(groups),
        trajectories=len(every),
        outcomes=dict(sorted(Counter(outcome_name(one.outcome) for one in every).items())),
        pass_at={k: estimate for k, estimate in pass_at.items() if estimate is not None},
        all_pass={k: estimate for k, estimate in all_pass.items() if estimate is not None},
        reward=_mean_reward(rewards, rules) if rewards else None,
        costs={
            "turns": _mean_of(scored, turn_count),
            "sampled_tokens": _mean_of(scored, lambda one: sum(one.mask)),
            "tool_calls": _mean_of(scored, lambda one: one.tool_calls),
            "seconds": _mean_of(scored, lambda one: one.seconds),
            **{f"component/{name}": mean for name, mean in components.items()},
        },
    )


def turn_count(trajectory: Trajectory) -> int:
    """Return the number of turns the policy took."""
    pairs = zip(trajectory.turns, trajectory.mask, strict=True)
    return len({turn for turn, sampled in pairs if sampled})


def _rewards(group: Sequence[Trajectory]) -> list[float]:
    rewards = [reward_of(trajectory.outcome) for trajectory in group]
    values = [reward for reward in rewards if reward is not None]
    if not all(map(math.isfinite, values)):
        raise ValueError(
            f"task {group[0].task.id} has rewards {values}, but a reward must be a finite number; "
            "fix the reward function"
        )
    return values


class _OfPasses(Protocol):
    def __call__(self, passed: int, *, samples: int, k: int) -> float: ...


def passes(
    rewards: Sequence[Sequence[float]],
    rules: ScoringRules,
    *,
    k: int = 1,
    figure: _OfPasses = pass_at_k,
) -> IntervalEstimate | None:
    """Return pass@k, or another figure of passes, from the rewards of each task; None where no task
    has k of them."""
    enough = [task_rewards for task_rewards in rewards if len(task_rewards) >= k]
    if not enough:
        return None
    passed = [sum(reward >= rules.threshold for reward in task_rewards) for task_rewards in enough]
    return _rate(
        [
            figure(c, samples=len(task_rewards), k=k)
            for c, task_rewards in zip(passed, enough, strict=True)
        ],
        # A task's pass@k is worth at least one yes-or-no trial per k samples.
        [len(task_rewards) / k for task_rewards in enough],
        rules,
    )


def _rate(
    values: Sequence[float], trials: Sequence[float] | None, rules: ScoringRules
) -> IntervalEstimate:
    # Where all tasks agree the bootstrap sees no spread, and would claim to know for sure.
    if rules.interval == "bootstrap" and len({*values}) > 1:
        return bootstrap_estimate(values, confidence=rules.confidence)
    return rate_estimate(values, trials=trials, confidence=rules.confidence)


def _mean_reward(rewards: Sequence[Sequence[float]], rules: ScoringRules) -> IntervalEstimate:
    values = [statistics.fmean(task_rewards) for task_rewards in rewards]
    unique_rewards = {reward for task_rewards in rewards for reward in task_rewards}
    if unique_rewards <= {0, 1}:
        return _rate(values, [len(task_rewards) for task_rewards in rewards], rules)
    if min(unique_rewards) >= 0 and max(unique_rewards) <= 1:
        return _rate(values, None, rules)
    if rules.interval == "bootstrap":
        return bootstrap_estimate(values, confidence=rules.confidence)
    return mean_estimate(values, confidence=rules.confidence)


def _mean_of(
    trajectories: Sequence[Trajectory], what: Callable[[Trajectory], float]
) -> float | None:
    return statistics.fmean(map(what, trajectories)) if trajectories else None
