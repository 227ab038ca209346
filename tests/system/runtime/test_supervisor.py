"""A command with children ends with its owner, and leaves none of them.

Mutants seen caught: only the command is killed; children in sessions of their own stay; the owner's
end is not looked at; the status of a command that was killed is lost.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agentrl.runtime import supervisor
from tests.support.processes import children, family, runs

FAMILY = """
import subprocess, sys, time
grandchild = "import signal, time; signal.signal(15, signal.SIG_IGN); "
grandchild += "print(1, flush=True); time.sleep(600)"
for apart in (False, True):
    child = subprocess.Popen(
        [sys.executable, "-c", grandchild], start_new_session=apart, stdout=subprocess.PIPE
    )
    child.stdout.readline()
print("up", flush=True)
time.sleep(600 if len(sys.argv) < 2 else 0)
"""


def start(*command: str, folder: str = "") -> tuple["subprocess.Popen[str]", int]:
    """Return a supervisor with a command, and the end that keeps it alive."""
    theirs, ours = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-I", str(supervisor.__file__), str(theirs), folder, *command],
        pass_fds=[theirs],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    os.close(theirs)
    return process, ours


def all_end(pids: list[int], within_s: float = 30.0) -> bool:
    until_s = time.monotonic() + within_s
    while any(map(runs, pids)) and time.monotonic() < until_s:
        time.sleep(0.05)
    return not any(map(runs, pids))


def end_owner(process: "subprocess.Popen[str]", ours: int) -> None:
    os.close(ours)


def kill_command(process: "subprocess.Popen[str]", ours: int) -> None:
    (command,) = children(process.pid)
    os.kill(command, signal.SIGKILL)


def kill_supervisor(process: "subprocess.Popen[str]", ours: int) -> None:
    process.kill()


@pytest.mark.parametrize("end", [end_owner, kill_command, kill_supervisor])
def test_nothing_of_a_command_is_left(
    end: Callable[["subprocess.Popen[str]", int], None],
) -> None:
    process, ours = start(sys.executable, "-c", FAMILY)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    members = family(process.pid)
    assert len(members) == 4
    (command,) = children(process.pid)
    end(process, ours)
    process.wait(30)
    process.stdout.close()
    # Its own death takes the command along, and the kernel knows no more than that.
    mine = [process.pid, command] if end is kill_supervisor else members
    assert all_end(mine)
    for pid in members:
        if runs(pid):
            os.kill(pid, signal.SIGKILL)


def test_children_of_a_command_that_has_ended_go(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / "file").touch()
    process, ours = start(sys.executable, "-c", FAMILY, "ends", folder=str(folder))
    assert process.wait(30) == 0
    assert not folder.exists()
    assert process.stdout is not None
    process.stdout.close()
    os.close(ours)


@pytest.mark.parametrize(("code", "status"), [("exit(7)", 7), ("os.kill(os.getpid(), 9)", 137)])
def test_the_status_is_that_of_the_command(code: str, status: int) -> None:
    process, ours = start(sys.executable, "-c", f"import os; {code}")
    assert process.wait(30) == status
    assert process.stdout is not None
    process.stdout.close()
    os.close(ours)
