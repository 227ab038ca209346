"""Other people's packages, asked in processes of their own: what they make of what we wrote."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

BENCH = Path(__file__).parents[2] / ".bench"

_ATIF = """
import sys
from pathlib import Path
from harbor.utils.trajectory_validator import TrajectoryValidator
for file in sorted(Path(sys.argv[1]).glob("*.json")):
    validator = TrajectoryValidator()
    if not validator.validate(file):
        print(file.name, *validator.errors)
"""
_PARQUET = """
import json, sys
from pathlib import Path
from agentrl.export import export
run, output = map(Path, sys.argv[1:])
export(run, output, to="hf", tokens=True)
from pyarrow import parquet
rows = [r for f in sorted(output.glob("data/*.parquet")) for r in parquet.read_table(f).to_pylist()]
print(json.dumps(rows))
"""


def atif_errors(folder: Path) -> list[str]:
    """Return what harbor's own validator says against the documents of a folder."""
    return _run(_ATIF, folder, place="harbor").splitlines()


def export_with_pyarrow(run: Path, output: Path) -> list[dict[str, Any]]:
    """Export a run as a dataset where pyarrow is, and return the rows it reads back."""
    return json.loads(_run(_PARQUET, run, output, place="pyarrow"))


def python_of(name: str) -> str:
    """Return the interpreter of a peer's venv."""
    return str(BENCH / name / "bin" / "python")


def _run(program: str, *arguments: Path, place: str) -> str:
    path = os.pathsep.join([*filter(None, sys.path), str(BENCH / place)])
    ran = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout
