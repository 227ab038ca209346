"""Script: import what checks need once, and fork for each: `fork_server SOCKET MODULE...`.

The other end of the socket, which keeps the bounds of messages, is the runner's. It is told when
the modules are there. A request is the arguments of a check as JSON, with descriptors that become
its standard input, its output and its pipe. The answer follows when the check has ended:
`{"code": exit status, "cpu_seconds": seconds}`. A message before it ends the check with its process
group, and so does the end of the runner.

This process has one thread and asks for no GPU, so that a fork of it is as good as a new process.
"""

import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Generator, Sequence
from typing import Any

from agentrl.errors import AgentrlError
from agentrl.runtime.imports import import_named
from agentrl.selfcheck import __main__ as check_process

VARIABLES = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
"""Environment while modules are imported. Where one asks whether there is a GPU, torch else asks
CUDA's driver, which a fork cannot use then."""
END_S = 5.0
"""Seconds that a check has to remove its folder and end, when its runner has ended."""
LOOK_S = 0.1
MESSAGE_BYTES = 65_536
_PR_SET_PDEATHSIG = 1


def main(arguments: Sequence[str]) -> None:
    """Serve the runner until it ends; in the process of a check, run that."""
    descriptor, *modules = arguments
    check: list[str] | None = None
    with socket.socket(fileno=int(descriptor)) as runner, contextlib.suppress(ConnectionError):
        with _ended_with(runner), _set_variables(VARIABLES):
            preload_modules(modules)
        runner.send(b"ready")
        check = serve(runner)
    if check is not None:
        if is_driver_lost():
            os.execv(sys.executable, [sys.executable, "-m", "agentrl.selfcheck", *check])
        check_process.main(check)


def preload_modules(names: Sequence[str]) -> None:
    """Import modules. One that cannot be imported is left to its check, which says why."""
    for name in names:
        with contextlib.suppress(AgentrlError):
            import_named(name, name)
    gc.freeze()  # a collection in a fork would copy the memory of all that is here


def is_driver_lost() -> bool:
    """Return whether this fork cannot use CUDA: a module has had its driver before."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and torch.cuda._is_in_bad_fork()


def serve(runner: socket.socket) -> list[str] | None:
    """Fork for each request until the runner ends; in the process of a check, return its arguments.

    Raises `ConnectionError` where the runner has ended during a check.
    """
    while True:
        data, descriptors, _, _ = socket.recv_fds(runner, MESSAGE_BYTES, 3)
        if not data:
            return None
        if not descriptors:  # an order to end a check that had ended
            continue
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)
            life, log, pipe = descriptors
            for source, target in ((life, 0), (log, 1), (log, 2)):
                os.dup2(source, target)
            os.close(life)
            os.close(log)
            return [*json.loads(data), str(pipe)]
        for descriptor in descriptors:
            os.close(descriptor)
        with contextlib.suppress(PermissionError):  # it has done so itself, and runs a program
            os.setpgid(pid, pid)
        runner.send(json.dumps(await_end(pid, runner)).encode())


def await_end(pid: int, runner: socket.socket) -> dict[str, float]:
    """Wait until a check has ended or is to end, then end its group; return how it ended."""
    until_s = float("inf")
    while not _has_ended(pid) and time.monotonic() < until_s:
        if until_s < float("inf"):
            time.sleep(LOOK_S)
        elif select.select([runner], [], [], LOOK_S)[0]:
            until_s = time.monotonic() + (0 if runner.recv(MESSAGE_BYTES) else END_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)  # one that has ended is a zombie: its group has its name
    _, status, usage = os.wait4(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return {"code": code, "cpu_seconds": usage.ru_utime + usage.ru_stime}


def _has_ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


@contextlib.contextmanager
def _ended_with(runner: socket.socket) -> Generator[None]:
    """Have the kernel end this process with its runner, while it does not look at the socket."""
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if select.select([runner], [], [], 0)[0]:  # the runner had ended before
        sys.exit()
    yield
    prctl(_PR_SET_PDEATHSIG, 0)


@contextlib.contextmanager
def _set_variables(values: dict[str, str]) -> Generator[None]:
    before = dict(os.environ)
    os.environ.update(values)
    yield
    os.environ.clear()
    os.environ.update(before)


if __name__ == "__main__":
    main(sys.argv[1:])
