"""The tutorial, word for word: its files are written, its commands run, in an empty folder.

It trains for real, on fixed seeds: what it says of its curve is what is seen here.

Mutants seen caught, of the page: a file that is not written, a learning rate near 0, an environment
whose tool answers wrongly.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.pages import blocks, lines_of

DEADLINE_S = 1500


def learner(root: Path) -> Mapping[str, str]:
    """Return the environment of somebody who has installed agentrl and nothing else."""
    roots = (str(root / place) for place in (".", "envs", "tools", "sandbox"))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(roots), "COLUMNS": "100"}


def argv(command: str) -> list[str]:
    """Return what a command of the tutorial runs, from this interpreter's environment."""
    name, *rest = shlex.split(command)
    module = {"agentrl": "agentrl.cli", "pytest": "pytest"}.get(name)
    assert module, f"{command!r}: the tutorial needs agentrl and pytest, and nothing else"
    return [sys.executable, "-m", module, *rest]


@pytest.fixture(scope="module")
def done(root: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """Do all of the tutorial; return its project and what each command printed."""
    folder = place = tmp_path_factory.mktemp("tutorial")
    printed: dict[str, str] = {}
    for block in blocks(root / "docs/tutorial.md", root):
        if file := block.marks.get("file"):
            (folder / file).write_text(block.text)
        elif block.language == "sh":
            for command in lines_of(block.text):
                if command.startswith("cd "):
                    place /= command.removeprefix("cd ")
                    continue
                ran = subprocess.run(
                    argv(command), cwd=place, env=learner(root), timeout=DEADLINE_S,
                    capture_output=True, text=True, check=False,
                )  # fmt: skip
                assert ran.returncode == 0, f"{block.place}: {command}\n{ran.stdout}\n{ran.stderr}"
                printed[command] = ran.stdout + ran.stderr
    return place, printed


pytestmark = [pytest.mark.nightly, pytest.mark.timeout(2 * DEADLINE_S)]


def test_the_curve_rises(done: tuple[Path, dict[str, str]]) -> None:
    project, _ = done
    for name in ("till", "slow"):
        summary = json.loads((project / "runs" / name / "summary.json").read_text())
        before, after = summary["before"], summary["after"]
        assert after["pass@1"] >= before["pass@1"] + 0.2, (name, summary)
        lines = (project / "runs" / name / "metrics.jsonl").read_text().splitlines()
        rewards = [json.loads(line)["reward/mean"] for line in lines]
        assert len(rewards) == 20
        assert sum(rewards[-5:]) > sum(rewards[:5]), (name, rewards)


def test_what_it_promises_of_every_command_is_there(done: tuple[Path, dict[str, str]]) -> None:
    project, printed = done
    assert "1 passed" in printed["pytest -q"]
    assert "ok  gold scores" in printed["agentrl check-env till_env:shop/Till-v0"]
    assert "pass@2" in printed[next(each for each in printed if "agentrl eval" in each)]
    assert (project / "evals/two").is_dir()
    assert "reward" in printed["agentrl watch runs/till --once"]
    told = printed["agentrl compare runs/till runs/till --which-a before"]
    found = re.search(r"B - A  +\+[\d.]+  +([+-][\d.]+) \.\.", told)
    assert found, told
    assert float(found[1]) > 0, "before and after cannot be told apart"
    page = (project / "till.html").read_text()
    assert "<title>till - agentrl</title>" in page
    assert 'id="agentrl-chunk-0"' in page
