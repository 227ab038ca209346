"""A program that runs beside the interpreter, for a session: started, captured, ended."""

import fcntl
import os
import selectors
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

from agentrl_sandbox.inside import confine, kernel
from agentrl_sandbox.inside.interpreter_process import ExitStatus, HeldProcess
from agentrl_sandbox.inside.output import ClippedOutput
from agentrl_sandbox.inside.quota import SessionLimits

_CHUNK_BYTES = 2**16
_DRAIN_CHUNKS_MAX = 64
_NOT_STARTED = 127
_REPORT_FD = 3


@dataclass(frozen=True)
class CommandRequest:
    """Request to run a command."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    stdin: bytes
    home: str
    confinement: SessionLimits


class CommandNamespace:
    """The user namespace that all commands of one session share, so that they can be told apart."""

    def __init__(self, confinement: SessionLimits) -> None:
        def enter() -> None:
            confine.become_the_user(confinement)
            kernel.enter_user_namespace()

        why_not = "no user namespace is available for the session's commands"
        with kernel.hold_namespaces(enter, why_not) as pid:
            self.fd = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        self.id = os.fstat(self.fd).st_ino

    def close(self) -> None:
        """Let go of it."""
        os.close(self.fd)


@dataclass
class RunningCommand:
    """A running command. Whoever still holds its output when it has ended writes for nobody."""

    request: int
    timeout_s: float
    selector: selectors.BaseSelector
    on_end: Callable[["RunningCommand"], None]
    output_bytes: int
    process: HeldProcess = field(default_factory=HeldProcess)
    started_s: float = field(default_factory=time.monotonic)
    trouble: str = ""
    """Why the program could not be started."""
    _open: dict[int, ClippedOutput | None] = field(default_factory=dict[int, ClippedOutput | None])
    _streams: list[ClippedOutput] = field(default_factory=list[ClippedOutput])
    _report: int = -1

    @property
    def deadline_s(self) -> float:
        """Return when it must be done, on the monotonic clock."""
        return self.started_s + self.timeout_s

    def start(self, order: CommandRequest, namespaces: Mapping[int, int]) -> None:
        """Start the program in these namespaces, joined in this order.

        `OSError` when there is no process left for it.
        """
        source = os.memfd_create("stdin")
        os.write(source, order.stdin)
        os.lseek(source, 0, os.SEEK_SET)
        out, err, report = os.pipe(), os.pipe(), os.pipe()
        try:
            pid = kernel.fork()
            if pid == 0:
                _become(order, (source, out[1], err[1], report[1]), namespaces)
        except OSError:
            for fd in (out[0], err[0], report[0]):
                os.close(fd)
            raise
        finally:
            for fd in (source, out[1], err[1], report[1]):
                os.close(fd)
        self._report = report[0]
        self.process = HeldProcess(pid)
        self.selector.register(self.process.pidfd, selectors.EVENT_READ, self._on_process_end)
        for fd in (out[0], err[0]):
            os.set_blocking(fd, False)
            clipped = ClippedOutput(self.output_bytes)
            self._streams.append(clipped)
            self._open[fd] = clipped
            self.selector.register(fd, selectors.EVENT_READ, partial(self._readable, fd))

    def end(self) -> ExitStatus:
        """Kill it if need be, and take in what it wrote."""
        self.selector.unregister(self.process.pidfd)
        death = self.process.end()
        self.trouble = os.read(self._report, 2**12).decode(errors="replace")
        os.close(self._report)
        for fd in list(self._open):
            self._drain(fd)
            if fd in self._open:
                self._open[fd] = None
                self.selector.unregister(fd)
        return death

    def drain(self) -> bool:
        """Drop what those it left behind have written since; whether they may write more.

        Now and then, and not as fast as they can: who reads at once works as hard as they do.
        """
        for fd in list(self._open):
            self._drain(fd)
        return bool(self._open)

    def abandon(self) -> None:
        """Stop listening to those it left behind."""
        for fd in list(self._open):
            self._close(fd)

    def output(self) -> dict[str, Any]:
        """Return the captured output, as part of a reply."""
        out, err = self._streams
        truncated = out.truncated or err.truncated
        return {"stdout": out.text(), "stderr": err.text(), "truncated": truncated}

    def _on_process_end(self, _: int) -> None:
        self.on_end(self)

    def _readable(self, fd: int, _: int) -> None:
        if fd in self._open:  # else it was drained and closed since the event came
            self._pump(fd)

    def _drain(self, fd: int) -> None:
        for _ in range(_DRAIN_CHUNKS_MAX):
            if not self._pump(fd):
                break

    def _pump(self, fd: int) -> bool:
        try:
            data = os.read(fd, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._close(fd)
            return False
        if (clipped := self._open[fd]) is not None:
            clipped.add(data)
        return True

    def _close(self, fd: int) -> None:
        if self._open.pop(fd) is not None:
            self.selector.unregister(fd)
        os.close(fd)


def _enter(home: str, cwd: str) -> None:
    os.chdir(home)
    top = os.getcwd()
    os.chdir(cwd)
    if os.path.commonpath((top, os.getcwd())) != top:
        raise PermissionError(f"{cwd!r} is outside the session directory")


def _become(
    order: CommandRequest, fds: tuple[int, int, int, int], namespaces: Mapping[int, int]
) -> NoReturn:
    """Turn this freshly forked process into the program."""
    try:
        # First out of the way: one of them may stand where another belongs.
        all_fds = (*fds, *namespaces.values())
        safe = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, len(all_fds)) for fd in all_fds]
        for place, fd in enumerate(safe):
            os.dup2(fd, place, inheritable=place < _REPORT_FD)
        confine.become_the_user(order.confinement)
        kernel.set_dumpable(True)
        confine.go_first()
        for fd, kind in enumerate(namespaces, start=_REPORT_FD + 1):
            kernel.join(fd, kind)
        os.closerange(_REPORT_FD + 1, os.sysconf("SC_OPEN_MAX"))
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        _enter(order.home, order.cwd)
        confine.limit(order.confinement)
        if order.confinement.isolated:
            confine.forbid()
        else:
            kernel.die_with_parent(signal.SIGKILL)
        env = {"HOME": order.home, "TMPDIR": order.home, **order.env}
        os.execvpe(order.argv[0], list(order.argv), {**confine.ENVIRONMENT, **env})
    except BaseException as error:  # noqa: BLE001 - the last place that can say why
        os.write(_REPORT_FD, str(error).encode(errors="replace")[: 2**12])
    finally:
        os._exit(_NOT_STARTED)
