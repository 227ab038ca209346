"""Script: run a command that may have children, and leave none of them when its owner ends.

    python supervisor.py DESCRIPTOR FOLDER COMMAND...

The owner holds the other end of the descriptor. When that is closed, however the owner ended, the
command is asked to end, and after `GRACE_S` everything that descends from it is killed, in whatever
session it is; then the folder is removed, unless its name is empty. Imports nothing of agentrl: it
is run by its path.
"""

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

GRACE_S = 10.0
"""Seconds that a command has to end by itself."""
KILL_S = 10.0
"""Seconds in which what is killed has to be gone."""
POLL_S = 0.2
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def main(descriptor: int, folder: str, command: list[str]) -> int:
    """Run the command, and return its exit status."""
    # Orphans of the command come to us, so that they can be found.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the owner decides, by closing its end
    process = subprocess.Popen(command, preexec_fn=_prepare_child, close_fds=True)
    try:
        while process.poll() is None:
            if select.select([descriptor], [], [], POLL_S)[0]:
                process.terminate()
                _await_end(process, GRACE_S)
                break
    finally:
        kill_descendants()
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
    status = process.poll()
    return 1 if status is None else status if status >= 0 else 128 - status


def kill_descendants() -> None:
    """Kill all processes below this one, and reap them, until there are none."""
    until_s = time.monotonic() + KILL_S
    while (pids := find_descendants(os.getpid())) and time.monotonic() < until_s:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        time.sleep(0.02)


def find_descendants(root: int) -> list[int]:
    """Return the ids of all processes below one."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                # The name, in parentheses, may have spaces and parentheses of its own.
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found, open_ids = list[int](), [root]
    while open_ids:
        below = children.get(open_ids.pop(), [])
        found += below
        open_ids += below
    return found


def _prepare_child() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the owner's to handle


def _await_end(process: "subprocess.Popen[bytes]", within_s: float) -> None:
    try:
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        return


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
