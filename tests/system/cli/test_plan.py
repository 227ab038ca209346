"""`agentrl plan` as a command: its tables in a narrow terminal, and what it refuses."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

QUICKSTART = Path(__file__).parents[3] / "configs" / "quickstart.yaml"
KEY = re.compile(r"\b(?:learn|engine|rollout)\.[a-z_.]+")


def run_plan(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Return the outcome of the command in a terminal of 80 columns."""
    return subprocess.run(
        [sys.executable, "-m", "agentrl", "plan", str(QUICKSTART), *arguments],
        env={**os.environ, "COLUMNS": "80"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_pipe_breaks_no_key() -> None:
    result = run_plan("--machine", "8xH100")
    assert result.returncode == 0, result.stderr
    tables, _, advice = result.stdout.partition("to change\n")
    assert KEY.findall(tables) == []
    keys = set(KEY.findall(advice))
    assert keys
    assert keys <= {
        "learn.devices.count", "learn.lora", "engine.processes", "engine.slots",
        "rollout.concurrency", "rollout.mode",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--machine", "H100x8"), "is 8xH100-80GB meant?"),
        (
            ("engine.kind=vllm", "engine.vllm.options={pipeline_parallel_size: 16}"),
            "asks for 16 GPUs for one engine (PP 16)",
        ),
    ],
)
def test_what_is_refused_is_named(arguments: tuple[str, ...], message: str) -> None:
    result = run_plan("--machine", "8xH100", *arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
