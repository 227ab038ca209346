"""vLLM's own server, in a process of its own."""

import os
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.support.ports import free_port

READY_S = 600.0
QUIET = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1"}


@contextmanager
def served(policy: Path, log: Path, *options: str, **variables: str) -> Generator[str]:
    """Serve a policy as `tiny`, with further arguments and variables, and yield its API's URL."""
    port = free_port()
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", str(policy), "--served-model-name", "tiny", "--dtype", "float32"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--max-model-len", "256"]
    command += ["--enforce-eager", "--kv-cache-memory-bytes", str(2**28), *options]
    with log.open("wb") as out:
        known = {**os.environ, **QUIET, **variables}
        process = subprocess.Popen(command, stdout=out, stderr=out, env=known)
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
