"""Task files of OSWorld, read once: which of them can be played here, and what the others need."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from agentrl.errors import ConfigError
from agentrl_envs.gui.osworld.books import table_needs
from agentrl_envs.gui.osworld.metrics import METRICS
from agentrl_envs.gui.osworld.results import result_needs
from agentrl_envs.gui.osworld.steps import app_needs, step_needs

INFEASIBLE = "infeasible"
_SHOWN = 40


@dataclass(frozen=True, slots=True)
class OsworldCheck:
    """One metric of a task: what it is given, and what that is put to."""

    func: str
    result: Mapping[str, Any]
    expected: Mapping[str, Any] | None
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class OsworldTasks:
    """The tasks of a folder."""

    tasks: Mapping[str, Mapping[str, Any]]
    """Those that can be played, as they were written, by their files: ids are not always unique."""
    refused: Mapping[str, Sequence[str]]
    """Needs of the other tasks, by their files."""

    @property
    def report(self) -> str:
        """Say how many can be played, and what every other one needs."""
        whole = len(self.tasks) + len(self.refused)
        lines = [f"supported {len(self.tasks)} of {whole}"]
        lines += [f"  {name}: needs {'; '.join(needs)}" for name, needs in self.refused.items()]
        return "\n".join(lines)

    def insist(self) -> None:
        """Raise `ConfigError` where a task cannot be played."""
        if self.refused or not self.tasks:
            lines = self.report.split("\n")
            more = len(lines) - _SHOWN
            excerpt = lines[:_SHOWN] + ([f"  and {more} more"] if more > 0 else [])
            raise ConfigError(
                "\n".join(excerpt)
                + (
                    "\nSet unsupported: skip to play only the supported tasks. Files from the "
                    "network are taken from the folder named by cache, as OSWorld stores it; "
                    "programs are taken from this machine; everything else requires OSWorld's own "
                    "virtual machine"
                )
            )


def read_tasks(path: str, cache: str = "") -> OsworldTasks:
    """Read a task file, or all of a folder. `ConfigError` for what are no task files.

    `cache` is the folder in which OSWorld keeps what tasks download, one folder for each.
    """
    supported: dict[str, Mapping[str, Any]] = {}
    refused: dict[str, Sequence[str]] = {}
    root = Path(path)
    for file in _files(path):
        if (task := _read(file)) is None:
            continue
        under = file.relative_to(root) if root.is_dir() else Path(file.name)
        name = under.with_suffix("").as_posix()
        if needs := [*dict.fromkeys(needs_of(task, Path(cache)))]:
            refused[name] = needs
        else:
            supported[name] = task
    if not supported and not refused:
        raise ConfigError(
            f"there is no task in OSWorld's format at {path!r}; name a .json file with id, "
            "instruction and evaluator, or a folder with such files"
        )
    return OsworldTasks(supported, refused)


def needs_of(task: Mapping[str, Any], cache: Path) -> Iterator[str]:
    """Yield what a task needs that there is not."""
    name = str(task["id"])
    steps = [*task.get("config", ()), *task["evaluator"].get("postconfig", ())]
    output_files = {
        str(step["parameters"][to])
        for step in steps
        for to in ("stdout", "stderr")
        if step.get("parameters", {}).get(to)
    }
    yield from app_needs([str(app) for app in task.get("related_apps", ())])
    if task.get("proxy"):
        yield "the network"
    for step in steps:
        yield from step_needs(step, name, cache)
    try:
        checks = checks_of(task)
    except (KeyError, TypeError, ValueError, AttributeError):
        yield "an evaluator that can be read"
        return
    for check in checks:
        if check.func not in METRICS:
            yield f"the metric {check.func!r}"
        elif check.func == "compare_table":
            yield from table_needs(check.options)
        yield from result_needs(check.result, name, cache, output_files)
        if check.expected is not None:
            yield from result_needs(check.expected, name, cache, output_files)


def checks_of(task: Mapping[str, Any]) -> list[OsworldCheck]:
    """Return the metrics of a task; none for one that cannot be done.

    Raises KeyError, TypeError or ValueError where its evaluator is not as the format has it.
    """
    evaluator = task["evaluator"]
    func = evaluator["func"]
    if func == INFEASIBLE:
        return []
    one = isinstance(func, str)
    funcs = [func] if one else [*func]
    columns: list[list[Any]] = []
    for part in ("result", "expected", "options"):
        value = evaluator.get(part)
        column = [value] if one else ([None] * len(funcs) if not value else [*value])
        columns.append(column)
    return [
        OsworldCheck(func, result or {}, expected or None, options or {})
        for func, result, expected, options in zip(funcs, *columns, strict=True)
    ]


def _files(path: str) -> list[Path]:
    if not path:
        raise ConfigError("path names no tasks; name a task file in OSWorld's format, or a folder")
    at = Path(path)
    if not at.exists():
        raise ConfigError(
            f"there is nothing at {path!r}; name a task file, or a folder of task files"
        )
    return sorted(at.rglob("*.json")) if at.is_dir() else [at]


def _read(file: Path) -> Mapping[str, Any] | None:
    """Return a task, or None for a file of another kind, such as a list of tasks."""
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{file} is not JSON: {error}") from None
    if not isinstance(data, dict):
        return None
    task = cast("dict[str, Any]", data)
    is_task = {"id", "instruction", "evaluator"} <= task.keys()
    return task if is_task and isinstance(task["evaluator"], dict) else None
