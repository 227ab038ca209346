"""A run that lies where nobody can write, as in an archive, is looked at all the same.

Mutants seen caught: a ledger opened with its write-ahead log; a log that is left out in silence; a
full disk taken for a broken one.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.store.index import StoreIndex
from agentrl.store.opening import LEDGER
from benchmarks.made_run import MadeRun

LOOKS = """
import sys
from agentrl.cli.app import main
out, run = sys.argv[1:]
for line in ("watch --once", f"view --no-open -o {out}/x.html", f"export -o {out}/x"):
    sys.argv = ["agentrl", *line.split(), run]
    try:
        main()
    except SystemExit as end:
        print("exit", end.code, flush=True)
"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return MadeRun(folder=tmp_path / "runs" / "made", groups=3, size=2).make()


READ_ONLY = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1"'
FULL = """
cp -a "$1" "$1.copy" && mount -t tmpfs -o size=8m none "$1" && cp -a "$1.copy/." "$1" &&
! cat /dev/zero >"$1/fill" 2>/dev/null
"""


def looked_at(run: Path, out: Path, mount: str = READ_ONLY) -> str:
    """Return what three commands say of a run on a file system that cannot be written to."""
    mounts = f'{mount.strip()} && shift && exec "$@"'
    looks = [sys.executable, "-c", LOOKS, str(out), str(run)]
    done = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", mounts, "sh", str(run), *looks],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "COLUMNS": "200"},
    )
    return done.stdout + done.stderr


@pytest.mark.namespaces
@pytest.mark.parametrize("mount", [READ_ONLY, FULL], ids=["read-only", "full"])
def test_a_run_that_cannot_be_written_to_is_looked_at(
    run: Path, tmp_path: Path, mount: str
) -> None:
    said = looked_at(run, tmp_path, mount)
    assert said.count("exit 0") == 3, said
    assert "6 trajectories" in said
    assert (tmp_path / "x.html").stat().st_size > 10_000


@pytest.mark.namespaces
def test_a_log_that_cannot_be_read_there_is_told(run: Path, tmp_path: Path) -> None:
    """Of a run that was killed: a reader would have to write beside it."""
    ledger = StoreIndex(run / "store" / LEDGER)
    ledger.mark_pruned([999], position=0)
    copy = tmp_path / "copy"
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns("*-shm"))
    ledger.close()
    assert (copy / "store" / f"{LEDGER}-wal").stat().st_size
    said = looked_at(copy, tmp_path)
    assert said.count("exit 2") == 3, said
    assert "Copy the run folder to a writable place, and open the copy" in said
    assert "resume" not in said
