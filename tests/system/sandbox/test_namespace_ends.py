"""Containers without an engine end with the process that made them, and so does their work."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from agentrl_sandbox.gc import collect
from agentrl_sandbox.provider.namespaces.root_files import unpack_root
from tests.support.processes import find_processes
from tests.support.root_folder import BASE, make_root

pytestmark = [
    pytest.mark.namespaces,
    pytest.mark.cgroup,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root maps the users of containers"),
]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_root(tmp_path_factory.mktemp("root"))


def test_an_archive_that_is_given_up_is_not_unpacked(root: str, tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(InterruptedError):
        unpack_root(root, tmp_path, 2**30, stop)
    assert find_processes(str(tmp_path)) == []


KILLED = """
import asyncio, sys
from agentrl.sandbox_provider import ContainerSpec
from agentrl_sandbox.gc import collect
from agentrl_sandbox.provider.namespaces import NamespaceProvider, layer_cache
from agentrl_sandbox.provider.namespaces.root_files import unpack_root

async def main(base, root, cache, folder, sleep):
    provider = NamespaceProvider(rootfs={base: root}, cache=cache)
    container = await provider.start(ContainerSpec(image=base))
    await container.exec(["bash", "-c", f"setsid {sleep} & true"], timeout_s=20)
    await provider.build(folder, timeout_s=300)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.timeout(120)
def test_a_killed_process_leaves_nothing(root: str, tmp_path: Path) -> None:
    sleep, cache = f"sleep 301.{os.getpid()}", tmp_path / "cache"
    (tmp_path / "Dockerfile").write_text(f"FROM {BASE}\nRUN {sleep}\n")
    command = [sys.executable, "-c", KILLED, BASE, root, str(cache), str(tmp_path), sleep]
    with subprocess.Popen(command) as process:
        try:
            while len(find_processes(sleep)) < 3:  # one of them is the shell of the build
                assert process.poll() is None
                time.sleep(0.1)
            assert len(list((cache / "containers").iterdir())) == 2
        finally:
            process.kill()
    while find_processes(sleep) or list((cache / "containers").iterdir()):
        time.sleep(0.1)
    assert [
        row
        for row in collect(dry_run=True, unknown_too=False, lost_engines=())
        if str(cache) in row.name
    ] == []
