"""Processes of checks, forked from one that has imported what they need."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import IO

import agentrl
from agentrl.selfcheck.catalogue import DeviceCheck
from agentrl.selfcheck.context import CheckFailed

START_S = 120.0
"""Seconds in which the modules of all checks have to be imported; 20 were seen on a cold disk."""
END_S = 5.0
"""Seconds in which a process has to be gone that was killed."""
LOG_BYTES = 4_000
LOG_LINES = 3
"""Last lines of a process's output that explain its end."""
MESSAGE_BYTES = 65_536


class CheckProcess:
    """The process of one check. Owned by `CheckForkServer.fork`."""

    def __init__(
        self, server: subprocess.Popen[bytes], connection: socket.socket, pipe: int
    ) -> None:
        self._server = server
        self._connection = connection
        self._pipe = pipe
        self._ending: tuple[int, float] | None = None

    def read_lines(self, *, until_s: float) -> Iterator[bytes]:
        """Yield lines until the pipe closes or the process has ended; `TimeoutError` when it is
        late.

        Children of the process may hold the pipe open longer than it lives.
        """
        rest = b""
        while True:
            ended = self._has_ended(0.0)
            left_s = until_s - time.monotonic()
            if left_s <= 0 and not ended:
                raise TimeoutError
            sources = [self._pipe, self._connection]
            ready, _, _ = select.select(sources, [], [], 0 if ended else left_s)
            data = os.read(self._pipe, MESSAGE_BYTES) if self._pipe in ready else b""
            if not data and (ended or self._pipe in ready):
                return
            *lines, rest = (rest + data).split(b"\n")
            yield from lines

    def end(self, within_s: float = 0.0) -> tuple[int, float]:
        """End the process with its group, if it does not end within so many seconds.

        Return its exit status, and the processor seconds of it and its children. Of a fork server
        that has ended too they are its status and 0.
        """
        if self._ending is None:
            self._ending = self._end(within_s)
        return self._ending

    def _end(self, within_s: float) -> tuple[int, float]:
        with contextlib.suppress(ConnectionError):
            if not self._has_ended(within_s):
                self._connection.send(b"end")
            if self._has_ended(END_S) and (answer := self._connection.recv(MESSAGE_BYTES)):
                ending = json.loads(answer)
                return ending["code"], ending["cpu_seconds"]
        self._server.kill()  # the process may be stuck in a driver
        return self._server.wait(), 0.0

    def _has_ended(self, within_s: float) -> bool:
        return bool(select.select([self._connection], [], [], within_s)[0])


class CheckForkServer:
    """The process that checks are forked from, one at a time: `agentrl.selfcheck.fork_server`.

    Owned by its creator, who closes it.
    """

    def __init__(self, checks: Sequence[DeviceCheck]) -> None:
        self._modules = [*dict.fromkeys(check.function.partition(":")[0] for check in checks)]
        self._started: tuple[subprocess.Popen[bytes], socket.socket] | None = None
        self.import_s = 0.0
        """Seconds that the last start has taken."""

    def start(self, *, within_s: float = START_S) -> None:
        """Start the process, unless it runs, and wait until it has imported the modules of the
        checks.

        Raises `CheckFailed` where it ends before, or is not ready in time.
        """
        if self._started is not None and self._started[0].poll() is None:
            return
        self.close()
        start_s = time.monotonic()
        with tempfile.TemporaryFile() as log:
            process, connection = self._started = _start_process(self._modules, log)
            is_late = not select.select([connection], [], [], within_s)[0]
            if is_late or not connection.recv(MESSAGE_BYTES):
                code = process.wait() if not is_late else 0
                ending = explain_end(code, within_s if is_late else None, read_tail(log))
                self.close()
                raise CheckFailed(f"what the checks need could not be imported: {ending}")
        self.import_s = time.monotonic() - start_s

    @contextlib.contextmanager
    def fork(
        self, check: DeviceCheck, *, device: str, folder: str, limit_s: float, log: IO[bytes]
    ) -> Generator[CheckProcess]:
        """Start the process of a check, which writes into `log`; it ends with the block."""
        assert self._started is not None, "start it first"
        server, connection = self._started
        request = json.dumps([check.function, device, folder, str(limit_s)]).encode()
        with contextlib.ExitStack() as stack:
            (life, our_life), (our_pipe, pipe) = os.pipe(), os.pipe()
            stack.callback(os.close, our_life)
            stack.callback(os.close, our_pipe)
            try:
                # A server that has ended gives no other answer than its end.
                with contextlib.suppress(ConnectionError):
                    socket.send_fds(connection, [request], [life, log.fileno(), pipe])
            finally:
                os.close(life)
                os.close(pipe)
            process = CheckProcess(server, connection, our_pipe)
            stack.callback(process.end)
            yield process

    def close(self) -> None:
        """End the process, if there is one."""
        if self._started is not None:
            process, connection = self._started
            self._started = None
            connection.close()
            process.kill()
            process.wait()


def _start_process(
    modules: Sequence[str], log: IO[bytes]
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Return a new process, and our end of its socket."""
    roots = [str(Path(agentrl.__file__).parents[1]), *filter(None, sys.path)]
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = (sys.executable, "-m", "agentrl.selfcheck.fork_server", str(theirs.fileno()))
    with theirs, contextlib.ExitStack() as failed:
        failed.callback(ours.close)
        process = subprocess.Popen(
            (*command, *modules),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(roots)},
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        failed.pop_all()
    return process, ours


def explain_end(code: int, limit_s: float | None, log: str) -> str:
    """Return why a process without a verdict has ended; `limit_s` of one that was too slow."""
    if limit_s is not None:
        ending = f"it took longer than {limit_s:.0f} s, and was ended"
    elif code < 0:
        ending = f"its process was ended by {signal.Signals(-code).name}"
        if code == -signal.SIGKILL:
            ending += ", as it is where memory runs out"
    else:
        ending = f"its process ended with exit status {code}"
    last = " / ".join(line.strip() for line in log.splitlines()[-LOG_LINES:])
    return f"{ending}; its last output: {last}" if last else ending


def read_tail(log: IO[bytes]) -> str:
    """Return the end of what a process has written."""
    size = log.seek(0, os.SEEK_END)
    log.seek(max(0, size - LOG_BYTES))
    return log.read().decode(errors="replace").strip()
