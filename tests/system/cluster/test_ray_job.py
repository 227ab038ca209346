"""A run handed to a cluster as a job, by the command of docs/cluster.md: Ray's job server for real.

Mutant seen caught: `RAY_ADDRESS` not looked at, so that the job starts a Ray of its own.
"""

import os
import re
import shutil
import signal
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from agentrl.metrics.writer import read_metrics
from tests.support.ports import free_port

pytestmark = [pytest.mark.ray, pytest.mark.timeout(720)]
START_S, RUN_S, END_S = 180.0, 300.0, 60.0
COMMANDS = Path(sysconfig.get_path("scripts"))
CONFIG = """
run: {{name: submitted, folder: {folder}, steps: 2}}
env: {{id: "reasoning/ChainSum-v0"}}
policy: {{make: {{hidden_size: 32, layers: 2, heads: 2, kv_heads: 1, head_dim: 16}}}}
warmstart: {{steps: 10, batch_size: 8, demonstrations: 40, guess_fraction: 0.3}}
engine: {{slots: 8, context_tokens: 256}}
sampling: {{max_turn_tokens: 24}}
rollout: {{tasks_per_step: 2, group_size: 4, concurrency: 6, max_turns: 3}}
learn: {{optimizer: {{learning_rate: 1.0e-3}}}}
evaluate: {{tasks: 6}}
metrics: {{tensorboard: false}}
cluster: {{workers: 2, worker_cpus: 0.5, start_s: 240}}
"""


def free_ports(count: int) -> list[int]:
    found: set[int] = set()
    while len(found) < count:
        found.add(free_port())
    return [*found]


@dataclass(frozen=True)
class Head:
    jobs: str
    """Where its job server is."""
    folder: Path
    environment: dict[str, str]


@contextmanager
def head(root: Path) -> Generator[Head]:
    """Run a head with a job server; nothing of it is left."""
    # Ray puts sockets there, whose paths may have 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="rj", dir="/tmp"))
    gcs, jobs, client, agent = free_ports(4)
    roots = [root, root / "envs", root / "tools", root / "sandbox"]
    environment = {
        "PATH": f"{COMMANDS}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(folder),
        "PYTHONPATH": os.pathsep.join(map(str, roots)),
        "OMP_NUM_THREADS": "1",
    }
    command = [
        *(COMMANDS / "ray", "start", "--head", "--block", "--disable-usage-stats"),
        *(f"--port={gcs}", f"--dashboard-port={jobs}", f"--ray-client-server-port={client}"),
        *(f"--dashboard-agent-listen-port={agent}", f"--temp-dir={folder}", "--num-cpus=4"),
    ]
    with (folder / "head.log").open("wb") as log:
        process = subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, start_new_session=True
        )
        try:
            wait_for_jobs(f"http://127.0.0.1:{jobs}", process, folder / "head.log")
            yield Head(f"127.0.0.1:{jobs}", folder, environment)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(END_S)
            finally:
                deadline = time.monotonic() + END_S
                while (left := of_head(folder)) and time.monotonic() < deadline:
                    time.sleep(0.1)
                for pid in left:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                shutil.rmtree(folder, ignore_errors=True)
    assert not left, "the head ends what it has started"


def wait_for_jobs(address: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()
        try:
            if httpx.get(f"{address}/api/jobs/", timeout=10).is_success:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    pytest.fail(f"no job server answered within {START_S:g} s: {log.read_text()}")


def of_head(folder: Path) -> list[int]:
    """Return the processes that name the head's folder in their commands."""
    found: list[int] = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_bytes()
        except OSError:
            continue  # it has ended
        if str(folder).encode() in words:
            found.append(int(place.name))
    return found


@pytest.mark.nightly
def test_a_run_is_submitted_as_the_page_says(root: Path, tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text(CONFIG.format(folder=tmp_path / "runs"))
    page = (root / "docs" / "cluster.md").read_text()
    said = re.search(r"^ray job submit .*$", page, re.MULTILINE)
    assert said is not None
    with head(root) as cluster:
        line = said[0].replace("HEAD:8265", cluster.jobs).replace("CONFIG", str(config))
        ran = subprocess.run(
            line.split(),
            env=cluster.environment,
            capture_output=True,
            text=True,
            timeout=RUN_S,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert "succeeded" in ran.stdout + ran.stderr
        had = actors(cluster)
    assert [row["step"] for row in read_metrics(tmp_path / "runs" / "submitted")] == [1, 2]
    assert had.count("EnvWorkerHost") == 2, "its environments were in its own cluster"


def actors(cluster: Head) -> list[str]:
    """Return the classes of the actors that the cluster has had."""
    answer = httpx.get(f"http://{cluster.jobs}/api/v0/actors", timeout=30).raise_for_status()
    return [actor["class_name"] for actor in answer.json()["data"]["result"]["result"]]
