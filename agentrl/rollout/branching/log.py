"""`branches.jsonl`: every decision of a run, and what became of the worlds that were copied.

    {"step": 3, "group": 17, "decision": {...}}                      one line per boundary
    {"step": 3, "group": 17, "task": ..., "observed": ..., "copies": [...]}   one per group, last

A group is written when it is handed to the trainer or dropped; `step` is the step it was for.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from agentrl.errors import ConfigError
from agentrl.rollout.branching.aepo import ObservedSignals
from agentrl.rollout.branching.decision import BranchDecision
from agentrl.rollout.branching.forks import ForkAttempt
from agentrl.rollout.branching.summary import BranchingSummary
from agentrl.runtime.atomic_files import write_text

FILE = "branches.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedDecision:
    """One boundary's line."""

    step: int
    group: int
    decision: BranchDecision


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedGroup:
    """One group's line."""

    step: int
    group: int
    task: str
    observed: ObservedSignals | None
    copies: tuple[ForkAttempt, ...]


Logged = LoggedDecision | LoggedGroup
_LOGGED: TypeAdapter[Logged] = TypeAdapter(LoggedDecision | LoggedGroup)


class BranchLog:
    """Appends to a run's decisions. The one owner of the file while the run lasts."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE

    def resume_after(self, step: int) -> ObservedSignals:
        """Forget what was written of later steps; return what the groups before have shown."""
        if not self._path.exists():
            return ObservedSignals()
        lines = [line for line in read_log(self._path.parent) if line.step <= step]
        write_text(self._path, "".join(_line(one) for one in lines))
        signals = (one.observed for one in lines if isinstance(one, LoggedGroup))
        return sum((one for one in signals if one is not None), ObservedSignals())

    def write(self, step: int, shaped: BranchingSummary) -> None:
        """Append one group; it is with the operating system when this returns."""
        lines: list[Logged] = [
            LoggedDecision(step=step, group=shaped.group, decision=decision)
            for decision in shaped.decisions
        ]
        lines.append(
            LoggedGroup(
                step=step,
                group=shaped.group,
                task=shaped.tree.task.id,
                observed=shaped.observed,
                copies=shaped.copies,
            )
        )
        with self._path.open("a", encoding="utf-8") as file:
            file.write("".join(map(_line, lines)))


def read_log(folder: Path) -> Iterator[Logged]:
    """Yield the lines of a run, oldest first; one that a crash left without its end is none.

    Raises `ConfigError` when there is no such file, or a line in it is no line of ours.
    """
    path = folder / FILE
    if not path.exists():
        raise ConfigError(
            f"{path}: no such file; {folder} has no run with rollout.branching that has completed "
            "a group"
        )
    for number, text in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        try:
            yield _LOGGED.validate_json(text)
        except ValidationError as error:
            raise ConfigError(
                f"{path}:{number} is neither a decision nor a group ({error.error_count()} "
                "problems); the file was edited or the disk is faulty: delete this line"
            ) from error


def _line(one: Logged) -> str:
    record: dict[str, Any] = asdict(one)
    return json.dumps(record, sort_keys=True, allow_nan=False) + "\n"
