"""Two policies on the same tasks: how far apart they are, and whether that can be chance.

Both played the same tasks with the same seeds, so the difference is taken task by task: how hard a
task is, which is most of what an interval of one policy is about, drops out.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any, Literal

import numpy as np

from agentrl.errors import ConfigError
from agentrl.evaluation.bootstrap import bootstrap_estimate
from agentrl.evaluation.interval import (
    IntervalEstimate,
    format_cells,
    mean_estimate,
    rate_estimate,
    replace_infinite,
)
from agentrl.evaluation.sample import EvaluationSample
from agentrl.evaluation.scores import ScoringRules
from agentrl.runtime.student import two_sided_t

EXACT_TASKS = 16
P_DRAWS = 20_000
"""Of the permutation test beyond `EXACT_TASKS`; no p-value is below one over the draws."""

Test = Literal["McNemar", "permutation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFlip:
    """A task that one policy passes more often than the other."""

    task: str
    a: float
    """Share of the task's pairs that pass."""
    b: float
    prompt: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyComparison:
    """B against A; every difference is B's figure less A's."""

    rules: ScoringRules
    a: IntervalEstimate
    """Share of passes on the tasks compared."""
    b: IntervalEstimate
    difference: IntervalEstimate
    """Paired by task."""
    unpaired: IntervalEstimate
    """The same without pairing: what the two reports alone could tell."""
    reward: IntervalEstimate
    """Difference of the mean rewards, paired by task."""
    p: float
    """The p-value: chance of so large a difference if the policies are equally good."""
    test: Test
    pairs: int
    failed: int
    """Pairs left out because one of the two broke."""
    unmatched: int
    """Trajectories left out because the other evaluation has none like it."""
    gained: tuple[TaskFlip, ...]
    """Tasks that B passes more often, the largest differences first."""
    lost: tuple[TaskFlip, ...]

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON; an unbounded end of an interval is null."""
        return replace_infinite(asdict(self))

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Return a table for people: figure, value, interval, tasks; every cell is text."""
        estimates = {
            "A": self.a,
            "B": self.b,
            "B - A": self.difference,
            "B - A, unpaired": self.unpaired,
            "reward, B - A": self.reward,
        }
        rows = [
            (name, *format_cells(estimate, "+" if "-" in name else ""))
            for name, estimate in estimates.items()
        ]
        rows.append((f"p ({self.test})", f"{self.p:.2g}", "", ""))
        rows.append(("tasks gained", str(len(self.gained)), "", ""))
        rows.append(("tasks lost", str(len(self.lost)), "", ""))
        left_out = {"failed pairs": self.failed, "without a partner": self.unmatched}
        return rows + [(name, str(count), "", "") for name, count in left_out.items() if count]


def compare(
    a: Sequence[EvaluationSample],
    b: Sequence[EvaluationSample],
    *,
    rules: ScoringRules,
    common: bool = False,
) -> PolicyComparison:
    """Compare two evaluations, paired by task and sample; the caller vouches for equal seeds.

    Raises `ConfigError`, saying which, where one has trajectories that the other has not; with
    `common` these are left out and counted. Pairs of which one broke are left out, never a zero.
    """
    of_a, of_b = _index_samples(a, "A"), _index_samples(b, "B")
    shared = of_a.keys() & of_b.keys()
    unmatched = len(of_a) + len(of_b) - 2 * len(shared)
    if unmatched and not common:
        raise ConfigError(_describe_mismatch(of_a, of_b))
    groups: dict[str, list[tuple[float, float]]] = {}
    for key in sorted(shared):
        rewards = of_a[key].reward, of_b[key].reward
        if rewards[0] is not None and rewards[1] is not None:
            groups.setdefault(key[0], []).append((rewards[0], rewards[1]))
    if not groups:
        raise ConfigError(
            f"{len(shared)} trajectories are in both evaluations, but every pair has a failed or "
            "missing one, so there is nothing to compare; check the failures first"
        )
    names = {key[0]: (of_a[key].task, of_a[key].prompt) for key in sorted(shared)}
    pairs = sum(map(len, groups.values()))
    passed = {
        task: [(x >= rules.threshold, y >= rules.threshold) for x, y in task_pairs]
        for task, task_pairs in groups.items()
    }
    shares = [
        TaskFlip(
            task=names[task][0],
            a=fmean(x for x, _ in task_pairs),
            b=fmean(y for _, y in task_pairs),
            prompt=names[task][1],
        )
        for task, task_pairs in passed.items()
    ]
    trials = [len(task_pairs) for task_pairs in passed.values()]
    rate_a = rate_estimate([f.a for f in shares], trials=trials, confidence=rules.confidence)
    rate_b = rate_estimate([f.b for f in shares], trials=trials, confidence=rules.confidence)
    away = [f.b - f.a for f in shares]
    once = max(trials) == 1
    return PolicyComparison(
        rules=rules,
        a=rate_a,
        b=rate_b,
        difference=_difference(away, rules, trials=fmean(trials)),
        unpaired=subtract_unpaired(rate_a, rate_b),
        reward=_difference(
            [
                fmean(y for _, y in task_pairs) - fmean(x for x, _ in task_pairs)
                for task_pairs in groups.values()
            ],
            rules,
        ),
        p=mcnemar(away.count(1), away.count(-1)) if once else sign_flip_p(away),
        test="McNemar" if once else "permutation",
        pairs=pairs,
        failed=len(shared) - pairs,
        unmatched=unmatched,
        gained=tuple(sorted((f for f in shares if f.b > f.a), key=lambda f: (f.a - f.b, f.task))),
        lost=tuple(sorted((f for f in shares if f.b < f.a), key=lambda f: (f.b - f.a, f.task))),
    )


def subtract_paired(
    away: Sequence[float], *, trials: float, confidence: float = 0.95
) -> IntervalEstimate:
    """Return the mean of one difference of pass shares per task, within [-1, 1], with its interval.

    Agresti and Min 2005 ("Simple improved confidence intervals for comparing matched proportions"):
    half a pair is added to each of passed by both, by neither, by A only, by B only, and the usual
    interval is taken, here with the task as the unit and Student's quantile. A pair weighs one over
    `trials`, the pairs of a task on average. It keeps a width where no task differs.
    """
    tasks = len(away)
    weight = tasks + 2 / trials
    centre = math.fsum(away) / weight
    squares = math.fsum(value**2 for value in away) + 1 / trials
    half = two_sided_t(confidence, tasks) * math.sqrt((squares / weight - centre**2) / weight)
    mean = math.fsum(away) / tasks
    return IntervalEstimate(
        mean=mean,
        low=min(max(centre - half, -1.0), mean),
        high=max(min(centre + half, 1.0), mean),
        tasks=tasks,
    )


def subtract_unpaired(a: IntervalEstimate, b: IntervalEstimate) -> IntervalEstimate:
    """Return b less a from their two intervals alone (Newcombe 1998, method 10)."""
    mean = b.mean - a.mean
    return IntervalEstimate(
        mean=mean,
        low=mean - math.hypot(b.mean - b.low, a.high - a.mean),
        high=mean + math.hypot(b.high - b.mean, a.mean - a.low),
        tasks=min(a.tasks, b.tasks),
    )


def mcnemar(gained: int, lost: int) -> float:
    """Return the two-sided p-value of McNemar's exact test: a fair coin for every task that flips.

    For one trajectory per task; `gained` and `lost` count the tasks that only B and only A passed.
    """
    differ = gained + lost
    tail = sum(math.comb(differ, i) for i in range(min(gained, lost) + 1))
    return min(1.0, 2 * tail / 2**differ)


def sign_flip_p(away: Sequence[float], *, seed: int = 0) -> float:
    """Return the two-sided p-value of the paired permutation test over tasks.

    Where policies are alike, each task's difference could as well have had the other sign. All
    signs are tried where no more than `EXACT_TASKS` tasks differ, else `P_DRAWS` draws of them.
    """
    differences = np.array([value for value in away if value])
    least = abs(math.fsum(differences)) - 1e-9
    if len(differences) <= EXACT_TASKS:
        sums = np.zeros(1)
        for value in differences:
            sums = np.concatenate([sums + value, sums - value])
        return float((np.abs(sums) >= least).mean())
    sizes, counts = np.unique(np.abs(differences), return_counts=True)
    positive = np.random.default_rng(seed).binomial(counts, 0.5, (P_DRAWS, len(counts)))
    extreme = int((np.abs((2 * positive - counts) @ sizes) >= least).sum())
    return (extreme + 1) / (P_DRAWS + 1)


def _difference(
    away: Sequence[float], rules: ScoringRules, *, trials: float | None = None
) -> IntervalEstimate:
    """Return the mean difference; `trials` per task for shares of passes, None for rewards."""
    if rules.interval == "bootstrap" and len({*away}) > 1:
        return bootstrap_estimate(away, confidence=rules.confidence)
    if trials is not None:
        return subtract_paired(away, trials=trials, confidence=rules.confidence)
    return mean_estimate(away, confidence=rules.confidence)


def _index_samples(
    samples: Sequence[EvaluationSample], whose: str
) -> dict[tuple[str, int], EvaluationSample]:
    index = {(one.fingerprint, one.sample): one for one in samples}
    if len(index) < len(samples):
        raise ConfigError(
            f"{whose} has {len(samples)} trajectories of only {len(index)} distinct tasks and "
            "samples, so pairs are ambiguous; repeat the evaluation"
        )
    return index


def _describe_mismatch(
    a: Mapping[tuple[str, int], EvaluationSample], b: Mapping[tuple[str, int], EvaluationSample]
) -> str:
    tasks_a, tasks_b = {key[0] for key in a}, {key[0] for key in b}
    if not tasks_a & tasks_b:
        return (
            f"A has {len(tasks_a)} tasks and B has {len(tasks_b)}, but none in common, and a "
            "paired comparison needs the same tasks: evaluate both with the same env.kwargs and "
            "run.seed"
        )
    if tasks_a != tasks_b:
        return (
            f"A has {len(tasks_a - tasks_b)} tasks that B lacks, B has {len(tasks_b - tasks_a)} "
            f"that A lacks, and {len(tasks_a & tasks_b)} are in both; evaluate both with the same "
            "evaluate.tasks, or compare only the common tasks (--common)"
        )
    return (
        f"A has {len(a)} trajectories of {len(tasks_a)} tasks and B has {len(b)}; evaluate both "
        "with the same evaluate.samples_per_task, or compare only the common trajectories "
        "(--common)"
    )
