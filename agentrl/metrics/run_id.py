"""Id that a metrics service gave a run, kept in the run's folder: a resumed run goes on there."""

import json
from pathlib import Path

from agentrl.runtime.atomic_files import write_json


def read_run_id(file: Path) -> str | None:
    """Return the id that an earlier start of the run was given; None at the first."""
    try:
        return str(json.loads(file.read_text(encoding="utf-8"))["id"])
    except FileNotFoundError:
        return None


def write_run_id(file: Path, run_id: str) -> None:
    write_json(file, {"id": run_id})
