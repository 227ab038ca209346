"""The processes of a desktop: started, reaped, looked at, and ended. We are their first process."""

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Mapping, Sequence

from agentrl_envs.gui.inside.timers import find_next_timer_s

_END_S = 15.0
_POLL_S = 0.01


class DesktopProcesses:
    """Everything that runs in here. Whatever loses its parent becomes ours."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = dict(environ)
        self._kept = {os.getpid()}
        self._ended: dict[int, int] = {}
        signal.signal(signal.SIGCHLD, self._reap)

    def start(self, command: Sequence[str], *, log: int, lent: int = -1) -> int:
        """Start a program that writes to `log`; return its pid; `lent` becomes its descriptor 3.

        FileNotFoundError when there is no such program.
        """
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        try:
            return self._spawn(command, [null, log, log, *([lent] if lent >= 0 else [])])
        finally:
            os.close(null)

    def run(
        self, command: Sequence[str], limit_s: float, most_bytes: int
    ) -> tuple[int | None, bytes, bytes]:
        """Run a program to its end; return its exit status and what it wrote, each part cut.

        The status is None for one that was killed because its time was over, with all it started
        in its session. OSError when it cannot be started. What it leaves running goes on.
        """
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        out, err = os.memfd_create("out"), os.memfd_create("err")
        try:
            pid = self._spawn(command, [null, out, err])
            end_s, late = time.monotonic() + limit_s, False
            while not self.has_ended(pid):
                if time.monotonic() > end_s:
                    late = True
                    with contextlib.suppress(ProcessLookupError):  # it has just ended
                        os.killpg(pid, signal.SIGKILL)
                    break
                time.sleep(_POLL_S)
            wrote = [os.pread(one, most_bytes, 0) for one in (out, err)]
        finally:
            for one in (null, out, err):
                os.close(one)
        status = self._ended.get(pid, 0)
        return None if late else os.waitstatus_to_exitcode(status), wrote[0], wrote[1]

    def keep(self, pids: Iterable[int]) -> None:
        """Say which processes stay when the others are ended."""
        self._kept |= set(pids)

    def forget(self, pid: int) -> None:
        """Say that a process that was kept stays no more."""
        self._kept.discard(pid)

    def has_ended(self, pid: int) -> bool:
        """Return whether a process that was started has ended."""
        self._reap()
        return pid in self._ended

    def has_crashed(self, pid: int) -> bool:
        """Return whether a process that was started has ended by a signal: it crashed."""
        self._reap()
        return os.WIFSIGNALED(self._ended.get(pid, 0))

    def list_pids(self) -> list[int]:
        """Return every process but ourselves."""
        return [int(name) for name in os.listdir("/proc") if name.isdecimal() and name != "1"]

    def end(self, pid: int) -> None:
        """Kill a process that was kept. TimeoutError when it stays."""
        self.forget(pid)
        self.end_all()

    def end_all(self) -> None:
        """Kill everything that is not kept. TimeoutError when something stays."""
        deadline_s = time.monotonic() + _END_S
        while survivors := [
            pid for pid in self.list_pids() if pid not in self._kept and not _is_dead(pid)
        ]:
            for pid in survivors:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"processes {survivors} did not end")
            time.sleep(_POLL_S)
            self._reap()

    def load(self) -> tuple[int, int]:
        """Return the number of threads that want the processor and the nanoseconds all have had."""
        wanting, had_ns = 0, 0
        for pid in self.list_pids():
            try:
                for thread in os.listdir(f"/proc/{pid}/task"):
                    with open(f"/proc/{pid}/task/{thread}/stat", "rb") as file:
                        wanting += file.read().rpartition(b") ")[2][:1] in b"RD"
                    with open(f"/proc/{pid}/task/{thread}/schedstat", "rb") as file:
                        had_ns += int(file.read().split(b" ", 1)[0])
            except OSError:
                continue  # it ended while we looked
        return wanting, had_ns

    def find_next_timer_s(self, besides: int) -> float:
        """Return the seconds after which one may go on by itself, `besides` one; 0.0 if unknown."""
        return find_next_timer_s(pid for pid in self.list_pids() if pid != besides)

    def _spawn(self, command: Sequence[str], descriptors: Sequence[int]) -> int:
        actions = [(os.POSIX_SPAWN_DUP2, one, to) for to, one in enumerate(descriptors)]
        return os.posix_spawnp(
            command[0], list(command), self.environ, file_actions=actions, setsid=True
        )

    def _reap(self, *signal_and_frame: object) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._ended[pid] = status


def _is_dead(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1] in b"ZX"
    except OSError:
        return True
