"""Reports on disk: where runs and evaluations keep theirs, and reading one to compare it."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError
from agentrl.evaluation.compare import PolicyComparison, compare
from agentrl.evaluation.report import EvaluationReport
from agentrl.evaluation.sample import EvaluationSample
from agentrl.evaluation.scores import Interval, ScoringRules
from agentrl.runtime.atomic_files import load_json, write_json

FOLDER = "evaluations"
"""Of a run: one report per evaluation, such as `after.json`."""
REPORT = "report.json"
"""Of an evaluation that has a folder of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredReport:
    """Parts of a report that a comparison needs."""

    path: Path
    about: Mapping[str, Any]
    threshold: float
    confidence: float
    samples: tuple[EvaluationSample, ...]


def save_report(report: EvaluationReport, run: Path, which: str) -> None:
    """Write a report into a run's folder; `which` is `after`, `before` or such as `step-20`."""
    (run / FOLDER).mkdir(exist_ok=True)
    write_json(run / FOLDER / f"{which}.json", report.to_json())


def read_summary(run: Path, which: str) -> dict[str, Any] | None:
    """Return `EvaluationReport.summary` of a report in a run's folder; None where it has none."""
    file = run / FOLDER / f"{which}.json"
    if not file.exists():
        return None
    advice = "restore it from a backup"
    report: Mapping[str, Any] = load_json(file, dict, advice=advice)
    one, reward = report.get("pass@1"), report.get("reward")
    names = [name for name in report if name.startswith(("pass@", "pass^")) and name != "pass@1"]
    return {
        "pass@1": None if one is None else one["mean"],
        f"ci{100 * report['confidence']:g}": None if one is None else [one["low"], one["high"]],
        "n": 0 if one is None else one["tasks"],
        **{name: report[name]["mean"] for name in names},
        "reward": None if reward is None else reward["mean"],
        "failed": report["failed"],
    }


def read_report(path: Path, which: str = "after") -> StoredReport:
    """Return the report of a file, an evaluation's folder or a run; `ConfigError` for none."""
    file = _file(path, which)
    try:
        report = json.loads(file.read_text(encoding="utf-8"))
        return StoredReport(
            path=file,
            about=dict(report["about"]),
            threshold=float(report["threshold"]),
            confidence=float(report["confidence"]),
            samples=tuple(map(EvaluationSample.from_json, report["samples"])),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{file} is not an evaluation report that can be compared "
            f"({type(error).__name__}: {error}); create one with agentrl eval CONFIG|RUN --json > "
            "FILE"
        ) from error


def compare_reports(
    a: StoredReport,
    b: StoredReport,
    *,
    common: bool = False,
    threshold: float | None = None,
    confidence: float | None = None,
    interval: Interval = "wilson",
) -> PolicyComparison:
    """Compare two reports, paired by task and seed; `ConfigError` for different conditions."""
    if threshold is not None and not math.isfinite(threshold):
        raise ConfigError(
            f"threshold is {threshold}, which no reward reaches; give a finite number"
        )
    different = [
        f"{key} is {a.about.get(key)!r} in A and {b.about.get(key)!r} in B"
        for key in sorted(a.about.keys() | b.about.keys())
        if key != "policy" and a.about.get(key) != b.about.get(key)
    ]
    if threshold is None and a.threshold != b.threshold:
        different.append(f"threshold is {a.threshold:g} in A and {b.threshold:g} in B")
    if different:
        raise ConfigError(
            f"{a.path} and {b.path} cannot be paired: {'; '.join(different)}. Repeat one "
            "evaluation with the settings of the other, such as agentrl eval RUN run.seed=0"
        )
    rules = ScoringRules(
        k=(1,),
        threshold=a.threshold if threshold is None else threshold,
        confidence=confidence or a.confidence,
        interval=interval,
    )
    return compare(a.samples, b.samples, rules=rules, common=common)


def _file(path: Path, which: str) -> Path:
    if path.is_file():
        return path
    for file in (path / FOLDER / f"{which}.json", path / REPORT):
        if file.is_file():
            return file
    names = sorted(file.stem for file in (path / FOLDER).glob("*.json"))
    there = f"its evaluations are {', '.join(names)}" if names else "it holds no evaluation"
    raise ConfigError(
        f"{path} has no report of the evaluation {which!r}: {there}; name a report, a run that has "
        "ended, or the folder of agentrl eval --out"
    )
