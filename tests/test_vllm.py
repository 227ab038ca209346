"""vLLM for real: with_vllm/, file by file, in the venv that has it."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.foreign_packages import python_of

FOLDER = Path(__file__).parent / "with_vllm"
FILES = sorted(FOLDER.glob("test_*.py"))
DEADLINE_S = 1200.0


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.timeout(DEADLINE_S + 60)
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_with_vllm(file: Path, root: Path) -> None:
    command = [python_of("vllm"), "-m", "pytest", "-p", "no:cacheprovider", str(file)]
    command += ["-o", f"timeout={DEADLINE_S:g}"]
    known = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    ran = subprocess.run(
        command,
        cwd=root,
        env={**known, "AGENTRL_REQUIRE": "vllm"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-20_000:] + ran.stderr[-2_000:]
    assert " skipped" not in ran.stdout.splitlines()[-1], ran.stdout[-4_000:]
