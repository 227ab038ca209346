"""vLLM's own server, asked over chat completions with tools."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from agentrl.cli.eval import newest_checkpoint
from agentrl.evaluation.endpoint import Endpoint
from agentrl.evaluation.policy import evaluate
from agentrl.training import train
from tests import test_training

pytestmark = pytest.mark.filterwarnings("default")

READY_S = 600.0
QUIET = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1"}
GREEDY = {"evaluate.temperature": 0.0, "policy.make.head_dim": 32}


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, test_training.__name__, test_training)


@contextmanager
def served(policy: Path, log: Path) -> Generator[str]:
    """Serve a policy, and yield the URL of its API."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", str(policy), "--served-model-name", "tiny", "--dtype", "float32"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--max-model-len", "256"]
    command += ["--enforce-eager", "--kv-cache-memory-bytes", str(2**28)]
    command += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env={**os.environ, **QUIET})
    try:
        until_s = time.monotonic() + READY_S
        url = f"http://127.0.0.1:{port}"
        while not _is_well(url):
            assert process.poll() is None, log.read_text()[-4000:]
            assert time.monotonic() < until_s, log.read_text()[-4000:]
            time.sleep(0.2)
        yield f"{url}/v1"
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _is_well(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5).is_success
    except httpx.HTTPError:
        return False


@pytest.mark.timeout(900)
def test_a_served_checkpoint_is_evaluated(tmp_path: Path) -> None:
    config = test_training.config_file(tmp_path)
    changes = {**GREEDY, "run.steps": 1, "warmstart.steps": 150}
    result = train(config, changes)
    checkpoint = newest_checkpoint(result.folder)
    with served(checkpoint, tmp_path / "log") as url:
        report = evaluate(config, changes, endpoint=Endpoint(url=url, model="tiny"))
    assert report.summary()["failed"] == 0
    assert report.summary()["n"] == 6
