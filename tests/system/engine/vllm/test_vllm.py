"""vLLM for real: with_vllm/, in one process of the venv that has it."""

import os
import subprocess
from pathlib import Path

import pytest

import agentrl
from agentrl.metrics.writer import read_metrics
from tests.support.examples import spread_cases
from tests.support.foreign_packages import python_of
from tests.support.tiny_run import seeing_changes

FOLDER = Path(__file__).parents[2] / "with_vllm"
DEADLINE_S = 3000.0


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.timeout(DEADLINE_S + 60)
@pytest.mark.parametrize("marks", spread_cases(["not nightly", "nightly"], 1))
def test_with_vllm(root: Path, marks: str) -> None:
    command = [python_of("vllm"), "-m", "pytest", "-p", "no:cacheprovider", str(FOLDER)]
    command += ["-m", marks, "-o", f"timeout={DEADLINE_S:g}"]
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


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.timeout(DEADLINE_S)
@pytest.mark.nightly
def test_a_policy_that_sees_is_sampled_in_another_interpreter(tmp_path: Path) -> None:
    """The trainer's here, with its own versions of transformers and numpy."""
    changes = seeing_changes(tmp_path)
    changes["policy.make"] |= {"head_dim": 32}
    engine = {
        "engine.kind": "vllm",
        "engine.vllm.sampler": "agentrl",
        "engine.processes": 1,
        "engine.python": python_of("vllm"),
        "engine.start_s": DEADLINE_S / 2,
    }
    result = agentrl.train("configs/see_button.yaml", {**changes, **engine})
    lines = read_metrics(result.folder)
    assert len(lines) == 2
    assert all(0 < line["engine_gap/max"] < 1e-3 for line in lines)
