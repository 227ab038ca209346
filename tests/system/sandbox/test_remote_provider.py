"""The example of a remote provider keeps the contract, and plays a task, on an engine of its own.

Mutants seen caught: a late command left running.
"""

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from agentrl.authoring.gold import play_gold
from agentrl.testing import check_provider
from agentrl_envs.harbor import HarborEnv
from agentrl_sandbox.recipe import BASE

pytestmark = pytest.mark.docker
ROOT = Path(__file__).parents[3]
ENGINE_S = 60.0


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of a second Docker engine, with one image."""
    if shutil.which("dockerd") is None or os.geteuid() != 0:
        pytest.skip("a second engine needs dockerd, and root")
    folder = tmp_path_factory.mktemp("engine")
    host = f"unix://{folder}/engine.sock"
    argv = (
        # In a network of its own: without a bridge it deletes the one of the engine that is there.
        *("unshare", "--net", "dockerd", "--bridge=none", "--iptables=false", "-H", host),
        *("--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec"),
        *("-p", f"{folder}/engine.pid"),
    )
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log)
    try:
        deadline_s = time.monotonic() + ENGINE_S
        while subprocess.run(
            ["docker", "-H", host, "info"], capture_output=True, check=False
        ).returncode:
            assert process.poll() is None, (folder / "log").read_text()[-2000:]
            assert time.monotonic() < deadline_s, "the engine does not answer"
            time.sleep(0.2)
        saved = subprocess.Popen(["docker", "save", BASE], stdout=subprocess.PIPE)
        subprocess.run(["docker", "-H", host, "load"], stdin=saved.stdout, check=True, timeout=300)
        assert saved.stdout is not None
        saved.stdout.close()
        assert saved.wait(ENGINE_S) == 0
        yield host
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(ENGINE_S)
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def example() -> Iterator[ModuleType]:
    """Yield the example as a module."""
    path = ROOT / "examples" / "providers" / "remote_docker.py"
    spec = importlib.util.spec_from_file_location("remote_docker", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["remote_docker"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["remote_docker"]


def list_containers(engine: str) -> str:
    argv = ["docker", "-H", engine, "ps", "-aq"]
    return subprocess.run(argv, capture_output=True, check=True, timeout=60, text=True).stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_remote_engine_keeps_the_contract(engine: str, example: ModuleType) -> None:
    proven = await check_provider(example.RemoteDocker(engine), image=BASE)
    assert "a late command is ended with what it started" in proven
    assert "changes are told" in proven
    assert proven[-1] == "nothing is left after close"
    assert list_containers(engine) == ""


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_task_is_played_on_a_remote_engine(engine: str, example: ModuleType) -> None:
    env = HarborEnv(
        str(ROOT / "examples" / "harbor" / "ready-image"),
        splits="all",
        provider="remote_docker:RemoteDocker",
        provider_kwargs={"host": engine},
    )
    assert example.RemoteDocker
    (task,) = env.tasks("train")
    try:
        assert (await play_gold(env, task)).reward == 1.0
    finally:
        await env.close()
