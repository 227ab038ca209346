"""A warm start that is killed or stopped goes on with `--resume`, to the same weights.

Mutants seen caught: written only when it is interrupted; no file given; the file left where the
policy is; SIGTERM as the kernel takes it.
"""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

CONFIG = """
run: {{name: whole, seed: 3, threads: 1, folder: {folder}}}
env: {{id: reasoning/ChainSum-v0, kwargs: {{difficulty: 0}}}}
policy:
  make: {{hidden_size: 32, layers: 1, heads: 2, kv_heads: 2, head_dim: 16, vocab_size: 320}}
warmstart: {{steps: 60, batch_size: 8, demonstrations: 40}}
engine: {{slots: 8, context_tokens: 512}}
"""
OFTEN = """
import time
from agentrl.learn import warmstart_file
warmstart_file.LEAST_INTERVAL_S, warmstart_file.WRITE_SHARE = 0.0, 1e9
write = warmstart_file.WarmstartFile.write
def write_slowly(*arguments):
    write(*arguments)
    time.sleep(0.1)
warmstart_file.WarmstartFile.write = write_slowly
from agentrl.cli.app import main
main()
"""
"""`agentrl`, which writes how far a warm start came after each step, and lets others look."""


def start(config: Path, root: Path, *arguments: str) -> "subprocess.Popen[str]":
    """Start `agentrl warmstart`."""
    places = ":".join(str(root / place) for place in (".", "envs", "tools", "sandbox"))
    return subprocess.Popen(
        [sys.executable, "-c", OFTEN, "warmstart", str(config), *arguments],
        env={**os.environ, "PYTHONPATH": places},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.timeout(600)
def test_a_warm_start_goes_on_after_a_kill_and_after_a_stop(tmp_path: Path, root: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG.format(folder=tmp_path / "runs"))
    whole = start(config, root)
    told, _ = whole.communicate(timeout=300)
    assert whole.returncode == 0, told
    folder = tmp_path / "runs/broken"
    file = folder / "warmstart-state.safetensors"
    codes = []
    for number, stop in enumerate((signal.SIGKILL, signal.SIGTERM)):
        before = file.read_bytes() if number else b""
        resume = ("--resume",) if number else ()
        running = start(config, root, "run.name=broken", *resume)
        while not file.exists() or file.read_bytes() == before:
            assert running.poll() is None, running.communicate()[0]
            time.sleep(0.01)
        running.send_signal(stop)
        told, _ = running.communicate(timeout=300)
        codes.append(running.returncode)
        assert not (folder / "policy").exists(), told
    assert codes == [-signal.SIGKILL, 130]
    last = start(config, root, "run.name=broken", "--resume")
    told, _ = last.communicate(timeout=300)
    assert last.returncode == 0, told
    assert re.search(r"warm start: resumes after [1-9]\d*, ", told), told
    weights = [
        tmp_path / "runs" / name / "policy/model.safetensors" for name in ("whole", "broken")
    ]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert not list((tmp_path / "runs").glob("*/warmstart-state.safetensors")), (
        "it is of no use any more"
    )
