"""How often an interval holds the true rate: the coverage tables of docs/evaluation.md.

    python benchmarks/intervals.py

Simulated evaluations of tasks that differ in how often they are passed: nothing is played. Takes
two minutes on one core.
"""

from collections.abc import Callable, Sequence

import numpy as np

from agentrl.evaluation.bootstrap import bootstrap_estimate, resample_means
from agentrl.evaluation.interval import IntervalEstimate, mean_estimate, rate_estimate

Estimator = Callable[[Sequence[float], int], IntervalEstimate]
"""Makes an interval of one pass rate per task, each over so many samples."""

ROWS = [
    *((200, 1, 0.0, rate) for rate in (0.01, 0.03, 0.3, 0.5, 0.9)),
    *((200, 4, a, rate) for a in (0.0, 0.3, 1.0) for rate in (0.01, 0.03, 0.5, 0.9)),
    *((50, 4, a, rate) for a in (0.0, 0.3, 1.0) for rate in (0.03, 0.1, 0.5, 0.9)),
]
"""Tasks, samples of each, agreement, rate."""


def wilson(values: Sequence[float], samples: int) -> IntervalEstimate:
    """Return what an evaluation uses by default."""
    return rate_estimate(values, trials=[samples] * len(values))


def student(values: Sequence[float], samples: int) -> IntervalEstimate:
    """Return Student's interval of the task means."""
    del samples
    return mean_estimate(values)


def bootstrap(values: Sequence[float], samples: int) -> IntervalEstimate:
    """Return the BCa bootstrap over tasks, as `evaluate.interval: bootstrap` does."""
    if len({*values}) == 1:
        return wilson(values, samples)
    return bootstrap_estimate(values, resamples=1000)


def percentile(values: Sequence[float], samples: int) -> IntervalEstimate:
    """Return the plain percentile bootstrap over tasks."""
    del samples
    low, high = np.quantile(resample_means(values, resamples=1000, seed=0), [0.025, 0.975])
    return IntervalEstimate(
        mean=sum(values) / len(values), low=float(low), high=float(high), tasks=len(values)
    )


def pooled(values: Sequence[float], samples: int) -> IntervalEstimate:
    """Return Wilson's interval over trajectories, as if all were independent."""
    each = [float(i < round(v * samples)) for v in values for i in range(samples)]
    return wilson(each, 1)


def simulated(
    rng: np.random.Generator, *, tasks: int, samples: int, rate: float, agreement: float, runs: int
) -> "np.ndarray":
    """Return how many samples of each task pass, shape (runs, tasks).

    A task's own pass rate is drawn from a beta distribution, so that two samples of a task
    correlate by `agreement`: 0 makes all tasks alike, 1 makes every task all or nothing.
    """
    if agreement == 0:
        own = np.full((runs, tasks), rate)
    elif agreement == 1:
        own = (rng.random((runs, tasks)) < rate).astype(float)
    else:
        spread = 1 / agreement - 1
        own = rng.beta(rate * spread, (1 - rate) * spread, size=(runs, tasks))
    return rng.binomial(samples, own)


def covered(
    estimator: Estimator,
    rng: np.random.Generator,
    *,
    tasks: int,
    samples: int,
    rate: float,
    agreement: float,
    runs: int,
) -> float:
    """Return how often the interval holds `rate`, over `runs` simulated evaluations."""
    passes = simulated(rng, tasks=tasks, samples=samples, rate=rate, agreement=agreement, runs=runs)
    # An interval depends on how many tasks have each count, so equal ones are computed once.
    profiles, times = np.unique(np.sort(passes, axis=1), axis=0, return_counts=True)
    hits = 0
    for profile, count in zip(profiles.tolist(), times.tolist(), strict=True):
        found = estimator([c / samples for c in profile], samples)
        hits += count * (found.low - 1e-12 <= rate <= found.high + 1e-12)
    return hits / runs


def main() -> None:
    """Print the table."""
    columns: list[tuple[str, Estimator, int]] = [
        ("Wilson (default)", wilson, 2000),
        ("bootstrap", bootstrap, 2000),
        ("percentile bootstrap", percentile, 2000),
        ("Student", student, 2000),
        ("Wilson over trajectories", pooled, 500),
    ]
    print("| tasks x samples | agreement | rate |", " | ".join(name for name, *_ in columns), "|")
    print("| --- | ---: | ---: |" + " ---: |" * len(columns))
    for tasks, samples, agreement, rate in ROWS:
        shares = [
            covered(
                estimator,
                np.random.default_rng(7),
                tasks=tasks,
                samples=samples,
                rate=rate,
                agreement=agreement,
                runs=runs,
            )
            for _, estimator, runs in columns
        ]
        cells = " | ".join(f"{100 * share:.1f}" for share in shares)
        print(f"| {tasks} x {samples} | {agreement:g} | {rate:g} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
