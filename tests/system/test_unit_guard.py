"""The guard of the unit tests refuses: its conftest, over tests that do what they must not."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ALLOWED = """
import asyncio
import socket
import threading

def test_a_loop_and_a_thread() -> None:
    async def beside() -> int:
        return await asyncio.to_thread(int)

    assert asyncio.run(beside()) == 0
    here, there = socket.socketpair()
    here.close()
    there.close()
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
"""
REFUSED = {
    "subprocess.Popen": "import subprocess; subprocess.run(['true'])",
    "os.fork": "import os; os.fork() or os._exit(0)",
    "os.posix_spawn": "import os; os.posix_spawn('/bin/true', ['true'], {})",
    "os.system": "import os; os.system('true')",
    "fork_exec": "import multiprocessing as m; m.get_context('spawn').Process(target=int).start()",
    "socket.bind": "import socket; socket.socket().bind(('127.0.0.1', 0))",
    "socket.connect": "import socket; socket.socket(socket.AF_UNIX).connect('/nowhere')",
    "socket.getaddrinfo": "import socket; socket.getaddrinfo('localhost', 80)",
}


def run_guarded(folder: Path, root: Path, source: str) -> subprocess.CompletedProcess[str]:
    shutil.copy(root / "tests/unit/conftest.py", folder)
    (folder / "test_it.py").write_text(source)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(folder)]
    return subprocess.run(
        command,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_what_stays_in_the_process_is_allowed(tmp_path: Path, root: Path) -> None:
    ran = run_guarded(tmp_path, root, ALLOWED)
    assert ran.returncode == 0, ran.stdout


def test_each_way_out_is_refused_by_name(tmp_path: Path, root: Path) -> None:
    tests = [f"def test_{n}():\n    {way}\n" for n, way in enumerate(REFUSED.values())]
    ran = run_guarded(tmp_path, root, "\n".join(tests))
    assert ran.returncode == 1
    for n, event in enumerate(REFUSED):
        does = "uses the network" if event.startswith("socket") else "starts a process"
        assert f"test_it.py::test_{n} is a unit test and {does} ({event}(" in ran.stdout
    assert "belongs in tests/system, and in tests/run if it trains" in ran.stdout


@pytest.mark.parametrize("where", ["fixture", "test"])
def test_an_error_that_is_hidden_fails_the_test_all_the_same(
    tmp_path: Path, root: Path, where: str
) -> None:
    hidden = (
        "\n    try:\n        subprocess.run(['true'])\n    except AssertionError:\n        pass\n"
    )
    idle = "\n    pass\n"
    source = (
        "import subprocess, pytest\n\n@pytest.fixture(scope='module')\ndef made():"
        + (hidden if where == "fixture" else idle)
        + "\ndef test_it(made):"
        + (hidden if where == "test" else idle)
        + "\ndef test_another():\n    pass\n"
    )
    ran = run_guarded(tmp_path, root, source)
    assert ran.returncode == 1
    assert "test_it is a unit test and starts a process" in ran.stdout
    assert "2 passed, 1 error" in ran.stdout
