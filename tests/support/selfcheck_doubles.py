"""Checks that do what a check must not do to a self-check."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from agentrl.selfcheck.context import CheckContext, CheckFailed, CheckSkipped


def fine(context: CheckContext) -> None:
    """Pass."""
    context.record("device", context.device)
    context.record("folder_is_empty", not any(context.folder.iterdir()))


def missing(context: CheckContext) -> None:
    """Lack a part."""
    raise CheckSkipped("it needs a part")


def wrong(context: CheckContext) -> None:
    """Find two faults, and a third."""
    context.expect("a", 2.0, at_most=1.0)
    context.expect("b", float("nan"), at_most=1.0)
    context.record("secret", os.environ["SELFCHECK_TOKEN"])
    context.record("place", str(context.folder / "file.txt"))
    context.conclude()
    raise CheckFailed("not reached")


def hang(context: CheckContext) -> None:
    """Never end, with a child that never ends either."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    context.record("pids", json.dumps([os.getpid(), child.pid]))
    time.sleep(600)


def hang_with_interpreter_held(context: CheckContext) -> None:
    """Never end, and take no signal that can be refused."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    context.record("begun", True)
    time.sleep(600)


def crash(context: CheckContext) -> None:
    """End by a signal, in the middle of a figure."""
    context.record("before", 1)
    sys.stderr.write("a kernel was launched wrong in /opt/secret place/kernel.cu\n")
    sys.stderr.flush()
    os.kill(os.getpid(), signal.SIGSEGV)


def run_out_of_memory(context: CheckContext) -> None:
    """End as the kernel ends a process."""
    os.kill(os.getpid(), signal.SIGKILL)


def kill_fork_server(context: CheckContext) -> None:
    """End the process that this one was forked from, and go on."""
    context.record("pids", json.dumps([os.getpid()]))
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)


def leave(context: CheckContext) -> None:
    """End without a verdict."""
    os._exit(3)


def leave_child(context: CheckContext) -> None:
    """Pass, and leave a process behind that holds everything open."""
    child = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], close_fds=False
    )
    context.record("pids", json.dumps([child.pid]))


def fill_output(context: CheckContext) -> None:
    """Write much, and words that are no message."""
    sys.stdout.write("x" * 5_000_000)
    for number in range(2_000):
        context.record(f"figure {number % 10}", "y" * 100)


def break_folder(context: CheckContext) -> None:
    """Leave a folder that can be neither listed nor removed by everybody."""
    place = context.folder / "closed" / "inner"
    place.mkdir(parents=True)
    (place / "file").write_text("x")
    Path(place).chmod(0)


def show_surroundings(context: CheckContext) -> None:
    """Record what a check is given."""
    context.record("limit_s", context.limit_s)
    context.record("left", context.left_s <= context.limit_s)
