"""Report of an evaluation: every score with its interval, infrastructure failures apart."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from agentrl.errors import ConfigError
from agentrl.evaluation.interval import IntervalEstimate, format_cells
from agentrl.evaluation.sample import EvaluationSample
from agentrl.evaluation.scaling.figures import ScalingReport
from agentrl.evaluation.scores import EvaluationScores, Interval, ScoringRules, pass_at_k, score
from agentrl.trajectory import Trajectory

HEADINGS = ("figure", "value", "interval", "tasks")
"""Of the columns of `EvaluationReport.rows`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationReport:
    """The figures of one evaluation, over all tasks and per tag."""

    rules: ScoringRules
    """Threshold of a pass, and the kind of the intervals."""
    overall: EvaluationScores
    """Figures of all tasks."""
    tags: Mapping[str, EvaluationScores]
    """Figures of the tasks with each tag; a task with two tags is in both."""
    samples: tuple[EvaluationSample, ...]
    """Outcome of every trajectory."""
    about: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Conditions of the evaluation: two reports are comparable where this is equal."""
    spent: Mapping[str, float] | None = None
    """Amounts spent of each budget, tries that broke among it; None where there are no budgets."""
    stopped: Mapping[str, Any] | None = None
    """Reason for a stop before the last task; None where there was none."""
    scaled: ScalingReport | None = None
    """Cost and gain of scaling a task; None where each sample is one trajectory."""

    @classmethod
    def of(
        cls,
        trajectories: Sequence[Trajectory],
        *,
        k: Sequence[int] = (1,),
        threshold: float = 1.0,
        confidence: float = 0.95,
        interval: Interval = "wilson",
        about: Mapping[str, Any] | None = None,
    ) -> Self:
        """Make a report, pass@1 always in it; `ConfigError` where no task has k trajectories."""
        groups = _group_by_task(trajectories)
        if not groups:
            raise ConfigError(
                "there are no trajectories to report on; give the evaluation at least one task"
            )
        rules = ScoringRules(
            k=tuple(sorted({1, *k})), threshold=threshold, confidence=confidence, interval=interval
        )
        samples = max(map(len, groups))
        for number in rules.k:
            pass_at_k(0, samples=samples, k=number)
        tags = sorted({tag for group in groups for tag in group[0].task.tags})
        return cls(
            rules=rules,
            overall=score(groups, rules),
            tags={
                tag: score([group for group in groups if tag in group[0].task.tags], rules)
                for tag in tags
            },
            samples=tuple(map(EvaluationSample.from_trajectory, trajectories)),
            about=about or {},
        )

    def summary(self) -> dict[str, Any]:
        """Return the few figures people quote, as JSON.

        `pass@1` with its interval (`ci95` for a confidence of 0.95) and the number of tasks `n` it
        rests on; then every other pass@k, every pass^k, the mean `reward` and the number of
        `failed` trajectories. A figure nobody knows, because every trajectory failed, is null.
        """
        one = self.overall.pass_at.get(1)
        reward = self.overall.reward
        return {
            "pass@1": None if one is None else one.mean,
            f"ci{100 * self.rules.confidence:g}": None if one is None else [one.low, one.high],
            "n": 0 if one is None else one.tasks,
            **{f"pass@{k}": e.mean for k, e in self.overall.pass_at.items() if k > 1},
            **{f"pass^{k}": e.mean for k, e in self.overall.all_pass.items()},
            "reward": None if reward is None else reward.mean,
            "failed": self.overall.failed,
        }

    def figures(self) -> dict[str, float]:
        """Return the known values as plain numbers by name, for a metrics file."""
        values = {name: estimate.mean for name, estimate in self.overall.estimates.items()}
        values |= {name: cost for name, cost in self.overall.costs.items() if cost is not None}
        return values | {"failed_fraction": self.overall.failed / self.overall.trajectories}

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON."""
        scaled = {} if self.scaled is None else {"scaling": self.scaled.to_json()}
        return {
            **scaled,
            "about": dict(self.about),
            "stopped": None if self.stopped is None else dict(self.stopped),
            "spent": None if self.spent is None else dict(self.spent),
            "threshold": self.rules.threshold,
            "confidence": self.rules.confidence,
            "interval": self.rules.interval,
            **self.overall.to_json(),
            "tags": {tag: scores.to_json() for tag, scores in self.tags.items()},
            "samples": [asdict(sample) for sample in self.samples],
        }

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Return a table for people: figure, value, interval and number of tasks, all as text."""
        rows = [*_estimate_rows(self.overall.estimates, "")]
        if self.scaled is not None:
            estimates = {"one attempt: pass@1": self.scaled.plain, "gain": self.scaled.gain}
            scaled_estimates = {name: one for name, one in estimates.items() if one is not None}
            rows += _estimate_rows(scaled_estimates, "")
            rows += [(name, f"{cost:.4g}", "", "") for name, cost in self.scaled.costs.items()]
        rows += [
            (name, f"{cost:.4g}", "", "")
            for name, cost in self.overall.costs.items()
            if cost is not None
        ]
        every = self.overall.trajectories
        rows += [
            (name, str(count), f"{count / every:.1%}", "")
            for name, count in self.overall.outcomes.items()
        ]
        if self.stopped is not None:
            by, at = self.stopped["by"], self.stopped["at"]
            rows.append((f"stopped by {by}", f"{at:g}", "", f"{self.stopped['tasks']}"))
        spent = (self.spent or {}).items()
        rows += [(f"spent: {name}", f"{amount:.6g}", "", "") for name, amount in spent if amount]
        for tag, scores in self.tags.items():
            rows += _estimate_rows(scores.estimates, f"{tag}: ")
            if scores.failed:
                rows.append((f"{tag}: failed", str(scores.failed), "", ""))
        return rows


def _group_by_task(trajectories: Iterable[Trajectory]) -> list[list[Trajectory]]:
    groups: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        groups.setdefault(trajectory.task.id, []).append(trajectory)
    return [*groups.values()]


def _estimate_rows(
    estimates: Mapping[str, IntervalEstimate], prefix: str
) -> Iterable[tuple[str, str, str, str]]:
    for name, estimate in estimates.items():
        yield f"{prefix}{name}", *format_cells(estimate)
