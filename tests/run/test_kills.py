"""A short kill campaign over three variants; `python -m benchmarks.kills` has them all."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.kills import VARIANTS, differences, is_of_this_process

pytestmark = pytest.mark.timeout(600)


@pytest.mark.slow
def test_runs_that_are_killed_go_on_and_end_the_same(tmp_path: Path, root: Path) -> None:
    places = ":".join(str(root / place) for place in (".", "envs", "tools", "sandbox"))
    only = "^(sync, vade, dapo|sync, second tries|async, start lag)$"
    figures = tmp_path / "figures.json"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks.kills", "--kills", "9", "--only", only),
            *("--seed", "7", "--folder", str(tmp_path / "runs"), "--json", str(figures)),
        ],
        cwd=root,
        env={**os.environ, "PYTHONPATH": places, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = json.loads(figures.read_text())
    assert sum(found["kills"].values()) == 9
    assert len(found["kills_of"]) == 3


def test_what_differs_is_named() -> None:
    one = {"metrics": [{"step": 1, "loss": 0.5}], "model.safetensors": "a"}
    other = {"metrics": [{"step": 1, "loss": 0.25}], "model.safetensors": "b"}
    assert differences(one, one) == []
    assert differences(one, other) == ["step 1 loss: 0.5 -> 0.25", "model.safetensors: a -> b"]
    assert [name for name in ("seconds/learn", "time", "tokens_per_s", "store/records", "loss",
                              "gate/retried") if not is_of_this_process(name)] == [
        "loss", "gate/retried"
    ]  # fmt: skip
    names = [one.name for one in VARIANTS]
    assert len(names) == len({*names}) >= 25
