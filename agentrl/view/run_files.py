"""Files beside a run's store, read for display: an invalid value is left out and reported.

Training refuses such a file, because it must not go on with wrong numbers. A page has to show the
rest of the run.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any, cast

from agentrl.evaluation.reports import REPORT
from agentrl.metrics.writer import FILE as METRICS
from agentrl.metrics.writer import parse_line
from agentrl.runtime.json_limits import JsonLimitError, JsonLimits, read_json

ENVIRONMENT = "environment.json"
LOCK = "lock"
SUMMARY = "summary.json"
SHOWN_FAULTS = 20
"""Lines that describe faults; the last one counts the others."""
SHOWN_CHARACTERS = 40
"""Of an invalid text."""
SHOWN_SCORES = ("pass@1", "reward")

_STEP_LIMIT = 2**53
_PID_LIMIT = 2**31
_SESSION_LIMITS = JsonLimits(text_bytes=64 * 2**20, values=10**6)

MetricLine = dict[str, float | None]


@dataclass(slots=True)
class FileFaults:
    """Faults of a run's files: the first of each key, and the number of lines with another one."""

    _texts: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    _repeats: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])

    def add(self, file: str, key: str, problem: str, *, line: int | None = None) -> None:
        """Record a fault; `problem` says what the key's value is, what it must be, what follows."""
        place = (file, key)
        if place in self._texts:
            self._repeats[place] = self._repeats.get(place, 0) + 1
            return
        origin = file if line is None else f"{file}:{line}"
        self._texts[place] = f"{origin}: {f'{key} ' if key else ''}{problem}"

    def lines(self, redact: Callable[[str], str] = str) -> list[str]:
        """Return one line per file and key, `SHOWN_FAULTS` at most."""
        texts = [
            redact(text)
            + (f" (so do {count:,} more lines)" if (count := self._repeats.get(place)) else "")
            for place, text in self._texts.items()
        ]
        if len(texts) > SHOWN_FAULTS:
            rest = len(texts) - SHOWN_FAULTS + 1
            texts[SHOWN_FAULTS - 1 :] = [f"{rest:,} more keys of these files have invalid values"]
        return texts


@dataclass(frozen=True, slots=True)
class LockOwner:
    """Process that a run's lock names."""

    pid: int
    host: str


def read_metric_lines(folder: Path, faults: FileFaults) -> list[MetricLine]:
    """Return the lines of `metrics.jsonl` with a step; none before the first step."""
    try:
        complete_lines = (folder / METRICS).read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    except OSError as error:
        faults.add(METRICS, "", f"cannot be read ({error.strerror}); no metric is shown")
        return []
    lines: list[MetricLine] = []
    for number, text in enumerate(complete_lines, start=1):
        try:
            values = parse_line(text)
        except ValueError as error:
            problem = f"the line is not a JSON object ({error}); it is left out"
            faults.add(METRICS, "", problem, line=number)
            continue
        step = _count(values.get("step"), limit=_STEP_LIMIT)
        if step is None:
            problem = _describe(values, "step", "a whole number", "the line is left out")
            faults.add(METRICS, "step", problem, line=number)
            continue
        line: MetricLine = {"step": step}
        if "time" not in values:
            faults.add(METRICS, "time", "is missing, expected seconds", line=number)
        for key, value in values.items():
            if key == "step":
                continue
            line[key] = _finite(value)
            if line[key] is None and value is not None:
                problem = _describe(values, key, "a finite number or null", "it is left out")
                faults.add(METRICS, key, problem, line=number)
        lines.append(line)
    return lines


def read_scores(folder: Path, faults: FileFaults) -> dict[str, Any] | None:
    """Return the scores of an evaluation: confidence, overall and by family; None without any."""
    report = _read_object(folder, REPORT, faults)
    if report is None:
        return None
    confidence = _finite(report.get("confidence"))
    if confidence is None:
        problem = _describe(report, "confidence", "a number", "intervals are shown without it")
        faults.add(REPORT, "confidence", problem)
    tags = report.get("tags")
    families: dict[str, Any] = {}
    if isinstance(tags, dict):
        for tag, scores in cast("dict[str, Any]", tags).items():
            if isinstance(scores, dict):
                rates = cast("dict[str, Any]", scores)
                families[tag] = _read_estimates(rates, f"tags.{tag}.", faults)
            else:
                problem = f"is {_name(scores)}, expected scores; the family is left out"
                faults.add(REPORT, f"tags.{tag}", problem)
    elif tags is not None:
        problem = f"is {_name(tags)}, expected scores by family; they are left out"
        faults.add(REPORT, "tags", problem)
    overall = _read_estimates(report, "", faults)
    return {"confidence": confidence, "overall": overall, "families": families}


def read_summary(folder: Path, faults: FileFaults) -> dict[str, Any]:
    """Return pass@1 and its interval, before and after training, as far as they are known."""
    summary = _read_object(folder, SUMMARY, faults) or {}
    scores: dict[str, Any] = {}
    for when in ("before", "after"):
        values = summary.get(when)
        if values is None:
            continue
        if not isinstance(values, dict):
            faults.add(SUMMARY, when, f"is {_name(values)}, expected scores; they are left out")
            continue
        own = cast("dict[str, Any]", values)
        rate = _finite(own.get("pass@1"))
        if rate is None:
            # Null where every trajectory failed.
            if own.get("pass@1", "") is not None:
                problem = _describe(own, "pass@1", "a number or null", "it is left out")
                faults.add(SUMMARY, f"{when}.pass@1", problem)
            continue
        scores[when] = {"pass@1": rate}
        name = next((key for key in own if key.startswith("ci")), None)
        if name is None:
            continue
        match own[name]:
            case [low, high] if _finite(low) is not None and _finite(high) is not None:
                scores[when][name] = [_finite(low), _finite(high)]
            case bounds:
                if bounds is not None:
                    problem = f"is {_name(bounds)}, expected two numbers; it is left out"
                    faults.add(SUMMARY, f"{when}.{name}", problem)
    return scores


def read_sessions(folder: Path, faults: FileFaults) -> list[Any] | None:
    """Return versions and machine of each start of a run; None where they are not known."""
    try:
        sessions = read_json((folder / ENVIRONMENT).read_bytes(), _SESSION_LIMITS)
    except FileNotFoundError:
        return None
    except (OSError, JsonLimitError) as error:
        faults.add(ENVIRONMENT, "", f"cannot be read ({error}); it is left out")
        return None
    if not isinstance(sessions, list):
        faults.add(ENVIRONMENT, "", f"is {_name(sessions)}, expected a list; it is left out")
        return None
    return cast("list[Any]", sessions)


def read_lock_owner(folder: Path, faults: FileFaults) -> LockOwner | None:
    """Return the process that works in a run's folder; None where none does or it is unknown."""
    file = folder / LOCK
    try:
        if not file.read_bytes().strip():
            return None  # released, or not signed yet
    except OSError:
        return None
    owner = _read_object(folder, LOCK, faults)
    if owner is None:
        return None
    pid, host = _count(owner.get("pid"), limit=_PID_LIMIT), owner.get("host")
    if not isinstance(host, str):
        problem = _describe(owner, "host", "a machine's name", "the run is shown as ended")
        faults.add(LOCK, "host", problem)
        return None
    if not pid:
        problem = _describe(owner, "pid", "a process id", "the run is shown as ended")
        faults.add(LOCK, "pid", problem)
        return None
    return LockOwner(pid=pid, host=host)


def _read_estimates(
    scores: Mapping[str, Any], prefix: str, faults: FileFaults
) -> dict[str, dict[str, float | None] | None]:
    """Return the valid ones of the estimates that are shown."""
    estimates: dict[str, dict[str, float | None] | None] = {}
    for name in SHOWN_SCORES:
        estimate = scores.get(name)
        if estimate is None:
            if name in scores:
                estimates[name] = None  # every trajectory failed
            continue
        if not isinstance(estimate, dict):
            problem = f"is {_name(estimate)}, expected an estimate or null; it is left out"
            faults.add(REPORT, f"{prefix}{name}", problem)
            continue
        values = cast("dict[str, Any]", estimate)
        numbers = {key: _finite(values.get(key)) for key in ("mean", "low", "high", "tasks")}
        # An end of an interval is null where it has none.
        optional = ("low", "high")
        wrong_keys = [
            key
            for key, number in numbers.items()
            if number is None and not (key in optional and values.get(key, "") is None)
        ]
        for key in wrong_keys:
            problem = _describe(values, key, "a number", f"{prefix}{name} is left out")
            faults.add(REPORT, f"{prefix}{name}.{key}", problem)
        if not wrong_keys:
            estimates[name] = numbers
    return estimates


def _read_object(folder: Path, name: str, faults: FileFaults) -> dict[str, Any] | None:
    """Return the JSON object in a file; None where there is no such file, or something else."""
    try:
        value = json.loads((folder / name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        faults.add(name, "", f"cannot be read ({error}); it is left out")
        return None
    if not isinstance(value, dict):
        faults.add(name, "", f"is {_name(value)}, expected a JSON object; it is left out")
        return None
    return cast("dict[str, Any]", value)


def _count(value: Any, *, limit: int) -> int | None:
    """Return a whole number from 0 to below `limit`; None for anything else."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < limit:
        return value
    return None


def _finite(value: Any) -> float | None:
    """Return a finite number; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return value if isfinite(value) else None
    except OverflowError:  # an integer beyond every float
        return None


def _describe(values: Mapping[str, Any], key: str, expected: str, result: str) -> str:
    state = f"is {_name(values[key])}" if key in values else "is missing"
    return f"{state}, expected {expected}; {result}"


def _name(value: Any) -> str:
    """Return an invalid value as it is named in an error, whatever its size."""
    if isinstance(value, list):
        return "a list"
    if isinstance(value, dict):
        return "an object"
    text = json.dumps(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[: SHOWN_CHARACTERS - 1]}…"
