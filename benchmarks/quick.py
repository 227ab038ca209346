"""Run the benchmarks of docs/results.md in their quick form, peers included, and miss no row.

    .venv/bin/python -m benchmarks.quick                  # all of them
    .venv/bin/python -m benchmarks.quick vs_trl web       # these
    .venv/bin/python -m benchmarks.quick --write web      # after a change of its rows: rows.json

A benchmark passes when it ends well and its report has every row that `rows.json` names. Figures
are not judged: two benchmarks run at a time. `ELSEWHERE` names those that something else runs.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FOLDER = Path(__file__).parent
ROWS = FOLDER / "rows.json"
DEADLINE_S = 1500.0
SHOWN_CHARACTERS = 4000
AT_A_TIME = 2

KEEPS_FOLDER = ("methods", "pretrained", "staleness", "ui_s1")
"""Benchmarks that keep what is finished, so that a second run would measure nothing."""
ELSEWHERE: Mapping[str, str] = {
    "chaos": "tests/run/test_chaos.py runs it short, in `make test-nightly`",
    "pretrained": "tests/run/test_smollm2.py trains its model, in `make test-nightly`",
    "quickstart": "CI trains the quickstart whole",
    "soak": "tests/system/sandbox/test_soak.py runs it short",
}


def expected_rows() -> dict[str, list[str]]:
    """Return the names of the rows by benchmark."""
    return json.loads(ROWS.read_text(encoding="utf-8"))


def missing_rows(expected: Sequence[str], report: Mapping[str, object]) -> list[str]:
    """Return the expected rows that a report of `Benchmark` lacks, in their order."""
    rows = report.get("rows")
    metrics = {row["metric"] for row in rows} if isinstance(rows, list) else set[str]()
    return [metric for metric in expected if metric not in metrics]


def run_quick(name: str, folder: Path) -> Mapping[str, object]:
    """Run one benchmark; return its report. Raises `RuntimeError` with its last words."""
    report = folder / f"{name}.json"
    command = [sys.executable, str(FOLDER / f"{name}.py"), "--quick", "--json", str(report)]
    if name in KEEPS_FOLDER:
        command += ["--folder", str(folder / name)]
    ran = subprocess.run(
        command,
        cwd=FOLDER.parent,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    if ran.returncode or not report.exists():
        raise RuntimeError(f"exit code {ran.returncode}: {ran.stdout[-SHOWN_CHARACTERS:]}")
    return json.loads(report.read_text(encoding="utf-8"))


def check_quick(name: str, expected: Sequence[str] | None, folder: Path) -> str:
    """Return what is wrong with one benchmark, or an empty string; None writes its rows down."""
    began = time.monotonic()
    try:
        report = run_quick(name, folder)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        problem = str(error)
    else:
        if expected is None:
            write_rows(name, report)
        missing = missing_rows(expected or (), report)
        notes = report.get("notes")
        problem = f"rows are missing: {', '.join(missing)}; its notes: {notes}" if missing else ""
    seconds = f"{time.monotonic() - began:.0f} s"
    print(f"{'FAILED' if problem else 'passed'} {name}, {seconds} {problem}", flush=True)
    return problem


def write_rows(name: str, report: Mapping[str, object]) -> None:
    """Write the rows of a report to rows.json."""
    rows = report.get("rows")
    if not isinstance(rows, list):
        raise RuntimeError(f"{name} reports no rows")
    known = expected_rows() if ROWS.exists() else {}
    known[name] = [row["metric"] for row in rows]
    ROWS.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Run them two at a time; the exit code is 1 when one fails."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    arguments.add_argument("names", nargs="*", metavar="NAME")
    arguments.add_argument("--write", action="store_true", help="write rows.json, one at a time")
    chosen = arguments.parse_args()
    known = {} if chosen.write else expected_rows()
    names: list[str] = chosen.names or sorted(known)
    at_a_time = 1 if chosen.write else AT_A_TIME
    with (
        tempfile.TemporaryDirectory(prefix="agentrl-bench-") as folder,
        ThreadPoolExecutor(at_a_time) as pool,
    ):
        checked = [
            pool.submit(check_quick, name, None if chosen.write else known[name], Path(folder))
            for name in names
        ]
        failed = sum(bool(one.result()) for one in checked)
    print(f"{len(names) - failed} passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
