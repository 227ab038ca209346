"""`summary.json` of a run: what it found, and how long each phase took. Written as it grows, so
that a run that is resumed keeps what it knew."""

import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agentrl.runtime.atomic_files import load_json, write_json


class RunSummary:
    """The run's findings by name, on disk after every change."""

    def __init__(self, path: Path) -> None:
        self._path = path
        advice = (
            "remove it to resume: the evaluation before training is then that of "
            "evaluations/before.json"
        )
        self._found = load_json(path, dict, advice=advice) if path.exists() else dict[str, Any]()

    def get(self, name: str) -> Any:
        """Return a finding, or None."""
        return self._found.get(name)

    def put(self, name: str, value: Any) -> None:
        """Record a finding."""
        self._found[name] = value
        write_json(self._path, self._found)

    @property
    def seconds(self) -> dict[str, float]:
        """Wall time per phase, over all the times the run was started."""
        return dict(self._found.get("seconds", {}))

    @contextmanager
    def time_phase(self, phase: str) -> Generator[None]:
        """Add the time the block takes to a phase, also when it is interrupted."""
        began = time.monotonic()
        try:
            yield
        finally:
            seconds = self.seconds
            seconds[phase] = round(seconds.get(phase, 0.0) + time.monotonic() - began, 2)
            self.put("seconds", seconds)
