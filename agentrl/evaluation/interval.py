"""Means with intervals, where the task is the unit: trajectories of one task are no new evidence.

Every function takes one value per task, so a task counts once however many trajectories it has, and
the variance between tasks already contains what the trajectories of a task have in common.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.runtime.student import two_sided_t

PRIOR_TASKS = 0.5
"""Weight, in tasks, of the belief that all trajectories of a task end alike. It matters only while
next to no task differs from the rest, and then keeps the interval from being too narrow; chosen by
the coverage table in docs/evaluation.md."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalEstimate:
    """A mean over tasks, and the interval that covers the true one as often as was asked for."""

    mean: float
    low: float
    high: float
    tasks: int


def mean_estimate(values: Sequence[float], *, confidence: float = 0.95) -> IntervalEstimate:
    """Return the mean of one value per task with Student's interval; unbounded for one task.

    This is the cluster-robust interval with the task as the cluster. For rates, `rate_estimate`
    is better: near 0 and 1 this one is too narrow, and at 0 and 1 it has no width.
    """
    mean = _mean(values)
    half = math.inf
    if len(values) > 1:
        half = two_sided_t(confidence, len(values) - 1) * math.sqrt(_estimate_error(values))
    return IntervalEstimate(mean=mean, low=mean - half, high=mean + half, tasks=len(values))


def rate_estimate(
    values: Sequence[float], *, trials: Sequence[float] | None, confidence: float = 0.95
) -> IntervalEstimate:
    """Return the mean of one value within [0, 1] per task with Wilson's interval.

    Wilson's interval of a plain proportion is sane at 0 and 1 and never leaves [0, 1]. Clustered
    trials are worth fewer independent ones, and the variance between tasks says how many: Wilson's
    formula is used with that effective number, and with Student's quantile.

    `trials` says how many yes-or-no trials the value of each task is made of; the effective number
    then lies between one per task and all of them. None for values that are no shares of passes.
    """
    mean = _mean(values)
    if min(values) < 0 or max(values) > 1:
        raise ValueError(f"a rate must be within [0, 1], got {min(values)} to {max(values)}")
    if len(values) == 1:
        return IntervalEstimate(mean=mean, low=0.0, high=1.0, tasks=1)
    number = _effective_number(values, mean, trials)
    if math.isinf(number):
        return IntervalEstimate(mean=mean, low=mean, high=mean, tasks=len(values))
    weight = two_sided_t(confidence, len(values) - 1) ** 2 / number
    centre = (mean + weight / 2) / (1 + weight)
    half = math.sqrt(weight * mean * (1 - mean) + weight**2 / 4) / (1 + weight)
    return IntervalEstimate(
        mean=mean,
        # The ends of the interval around 0 and 1 are 0 and 1; rounding must not move them.
        low=min(max(centre - half, 0.0), mean),
        high=max(min(centre + half, 1.0), mean),
        tasks=len(values),
    )


def _effective_number(
    values: Sequence[float], mean: float, trials: Sequence[float] | None
) -> float:
    """Return the number of independent yes-or-no trials that the values are worth together."""
    tasks = len(values)
    squared_error = _estimate_error(values)
    if trials is None:
        if mean in (0, 1):
            return tasks
        return mean * (1 - mean) / squared_error if squared_error else math.inf
    # The variance of the mean, had all trials been independent, is mean * (1 - mean) / independent;
    # the design effect is how many times that the true variance is.
    independent = tasks**2 / sum(1 / number for number in trials)
    most = independent / tasks
    informative = min(sum(value > 0 for value in values), sum(value < 1 for value in values))
    effect = most
    if informative:
        effect = squared_error * independent / (mean * (1 - mean))
        effect = min(max(effect, 1.0), most)
    return independent * (informative + PRIOR_TASKS) / (informative * effect + PRIOR_TASKS * most)


def _mean(values: Sequence[float]) -> float:
    if not values:
        raise ValueError("no task has a value, so there is no mean; check for values first")
    return statistics.fmean(values)


def _estimate_error(values: Sequence[float]) -> float:
    """Return the estimated variance of the mean."""
    return statistics.variance(values) / len(values)


def format_cells(estimate: IntervalEstimate, sign: str = "") -> tuple[str, str, str]:
    """Return value, interval and number of tasks for a table; `sign` is of the format."""
    low, high = f"{estimate.low:{sign}.3f}", f"{estimate.high:{sign}.3f}"
    is_finite = math.isfinite(estimate.low) and math.isfinite(estimate.high)
    interval = f"{low} .. {high}" if is_finite else "needs two tasks"
    return f"{estimate.mean:{sign}.3f}", interval, str(estimate.tasks)


def replace_infinite(value: Any) -> Any:
    """Return a value as JSON has it: null for a float that is not finite, such as an open end."""
    match value:
        case dict():
            return {str(key): replace_infinite(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        case list() | tuple():
            return [replace_infinite(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
        case float() if not math.isfinite(value):
            return None
        case _:
            return value
