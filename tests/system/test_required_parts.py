"""A missing part of the system skips its tests by name, unless AGENTRL_REQUIRE asks for it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

NEEDY = """
import pytest

@pytest.mark.bubblewrap
def test_needs_bubblewrap() -> None:
    pass

def test_needs_nothing() -> None:
    pass
"""

LEAKY = """
import subprocess

def test_leaves_a_process() -> None:
    subprocess.Popen(["sleep", "60"]).returncode = 0
"""


def run_tests(
    folder: Path, root: Path, source: str, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run `source` under this project's conftest, in a folder of its own."""
    shutil.copy(root / "tests/conftest.py", folder)
    (folder / "test_it.py").write_text(source)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = bubblewrap: a part\n")
    command = [sys.executable, "-m", "pytest", "-ra", "-p", "no:cacheprovider", str(folder)]
    known = {name: value for name, value in os.environ.items() if name != "AGENTRL_REQUIRE"}
    return subprocess.run(
        command,
        env={**known, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **environ},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def without_bubblewrap(folder: Path) -> str:
    """Return a PATH on which there is no bwrap."""
    (folder / "bin").mkdir()
    return str(folder / "bin")


def test_a_missing_part_skips_and_says_what_installs_it(tmp_path: Path, root: Path) -> None:
    ran = run_tests(tmp_path, root, NEEDY, PATH=without_bubblewrap(tmp_path))
    assert ran.returncode == 0, ran.stdout
    assert "1 passed, 1 skipped" in ran.stdout
    assert "apt-get install bubblewrap" in ran.stdout


def test_a_missing_part_that_is_required_fails(tmp_path: Path, root: Path) -> None:
    ran = run_tests(
        tmp_path, root, NEEDY, PATH=without_bubblewrap(tmp_path), AGENTRL_REQUIRE="bubblewrap"
    )
    assert ran.returncode == 1
    assert "1 passed, 1 error" in ran.stdout
    assert "AGENTRL_REQUIRE asks for bubblewrap: bwrap is not installed" in ran.stdout


def test_a_requirement_nobody_knows_stops_the_session(tmp_path: Path, root: Path) -> None:
    ran = run_tests(tmp_path, root, NEEDY, AGENTRL_REQUIRE="bubblewrap, bublewrap")
    assert ran.returncode == pytest.ExitCode.USAGE_ERROR
    assert "names ['bublewrap']; the parts are ['agents', " in ran.stderr


def test_a_process_left_behind_fails_the_session(tmp_path: Path, root: Path) -> None:
    ran = run_tests(tmp_path, root, LEAKY)
    assert ran.returncode == 1
    assert "left processes behind: ['sleep 60']" in ran.stdout
