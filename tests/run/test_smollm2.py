"""SmolLM2-135M-Instruct itself, from its package: made a folder once, trained two steps in the very
config of the documentation, killed with `kill -9` on the way and resumed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agentrl.models.catalogue import MODELS

pytestmark = [
    pytest.mark.smollm2,
    pytest.mark.namespaces,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
]

MODEL = MODELS["smollm2-135m"]
WAIT_S = 600.0
SMALL = (
    "run.steps=2",
    "run.checkpoint_every=1",
    "run.threads=1",
    "warmstart.steps=1",
    "warmstart.batch_size=2",
    "warmstart.demonstrations=4",
    "rollout.tasks_per_step=1",
    "rollout.group_size=2",
    "sampling.max_turn_tokens=12",
    "evaluate.tasks=2",
    "metrics.tensorboard=false",
)


@pytest.fixture(scope="module")
def environ(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """What finds the package, and the folder made of it."""
    places = [root / place for place in (".", "envs", "tools", "sandbox", ".bench/smollm2")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, places)),
        "AGENTRL_MODELS": str(tmp_path_factory.mktemp("models")),
        "OMP_NUM_THREADS": "1",
    }


@pytest.fixture(scope="module")
def made(environ: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model as a folder, made by the command."""
    done = agentrl(environ, tmp_path_factory.mktemp("get"), "model", "get", MODEL.name)
    assert done.returncode == 0, done.stderr
    folder = Path(environ["AGENTRL_MODELS"]) / MODEL.name
    assert f"{MODEL.name} is in {folder}; policy.path={MODEL.name}" in done.stdout
    return folder


def agentrl(
    environ: Mapping[str, str], folder: Path, *arguments: str
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "agentrl", *arguments],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


def test_the_model_is_made_once(made: Path, environ: Mapping[str, str], tmp_path: Path) -> None:
    weights = made / "model.safetensors"
    written = weights.stat().st_mtime_ns
    done = agentrl(environ, tmp_path, "model", "get", MODEL.name)
    assert (done.returncode, done.stderr) == (0, "")
    assert weights.stat().st_mtime_ns == written
    assert [path.name for path in made.parent.iterdir()] == [MODEL.name]
    config = json.loads((made / "config.json").read_text())
    assert (config["model_type"], config["vocab_size"]) == ("llama", 49_152)
    shown = agentrl(environ, tmp_path, "model", "list").stdout
    assert shown.splitlines()[1].split()[0] == MODEL.name
    assert shown.splitlines()[1].endswith(str(made))


def test_its_template_is_told_the_way_out_and_takes_it(
    made: Path, environ: Mapping[str, str], tmp_path: Path
) -> None:
    bare = agentrl(environ, tmp_path, "check-template", MODEL.name)
    assert bare.returncode == 1
    assert "set policy.template to hermes, which fits this" in bare.stdout
    given = agentrl(environ, tmp_path, "check-template", MODEL.name, "--template", "hermes")
    assert given.returncode == 0, given.stdout


@pytest.mark.nightly
def test_a_run_of_it_that_is_killed_goes_on(
    made: Path, environ: Mapping[str, str], root: Path, tmp_path: Path
) -> None:
    config = str(root / "configs" / "smollm2" / "tools.yaml")
    command = [sys.executable, "-m", "agentrl", "train", config, *SMALL]
    folder = tmp_path / "runs" / "smollm2-tools"
    with (tmp_path / "log").open("ab") as log:
        run = subprocess.Popen(command, cwd=tmp_path, env=environ, stdout=log, stderr=log)
        ends = time.monotonic() + WAIT_S
        while not (folder / "checkpoints" / "step-000001").is_dir():
            assert run.poll() is None, (tmp_path / "log").read_text()[-3000:]
            if time.monotonic() > ends:
                run.kill()
            time.sleep(0.05)
        run.send_signal(signal.SIGKILL)
        assert run.wait() == -signal.SIGKILL
    assert not (folder / "checkpoints" / "step-000002").exists(), "it was killed too late"
    done = agentrl(environ, tmp_path, "train", config, *SMALL, "--resume")
    assert done.returncode == 0, done.stderr
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    assert summary["after"]["n"] == 2
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 2
    started = summary["policy"]
    assert started["path"] == str(made)
    assert (started["license"], started["version"]) == (MODEL.license, MODEL.version)
    assert started["file_sha256"] == MODEL.sha256
