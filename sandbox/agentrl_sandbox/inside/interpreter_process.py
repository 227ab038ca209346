"""The keeper's view of one interpreter process: its end of the channel, its output, its end."""

import contextlib
import os
import signal
import socket
from dataclasses import dataclass, field

from agentrl_sandbox.inside import processes
from agentrl_sandbox.inside.interpreter import InterpreterDescriptors
from agentrl_sandbox.inside.output import OutputCapture

SO_PASSCRED, SCM_CREDENTIALS = 16, 2


@dataclass(frozen=True)
class ExitStatus:
    """End of a process, and the CPU time it used."""

    signal: int = 0
    code: int = 0
    cpu_s: float = 0.0

    @property
    def text(self) -> str:
        """Return the end in words."""
        if not self.signal:
            return f"ended with exit status {self.code}"
        try:
            name = signal.Signals(self.signal).name
        except ValueError:
            name = f"signal {self.signal}"
        return f"was killed by {name}"


class HeldProcess:
    """A process that is held by a descriptor: its number may be another's once it is gone."""

    def __init__(self, pid: int = 0) -> None:
        """Take hold of a process, or with 0 of none; `ProcessLookupError` when it is gone."""
        self.pid = pid
        self.pidfd = os.pidfd_open(pid) if pid else -1

    def end(self) -> ExitStatus:
        """Kill it, or bury it when it is dead already, and let go of it."""
        if self.pidfd < 0:
            return ExitStatus()
        try:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
            status, usage = processes.wait_end(self.pid, self.pidfd)
        finally:
            os.close(self.pidfd)
            self.pidfd = -1
        if status is None or usage is None:
            return ExitStatus()
        cpu_s = usage.ru_utime + usage.ru_stime
        if os.WIFSIGNALED(status):
            return ExitStatus(signal=os.WTERMSIG(status), cpu_s=cpu_s)
        return ExitStatus(code=os.WEXITSTATUS(status), cpu_s=cpu_s)


def nonce() -> str:
    """Return 16 hexadecimal digits nobody can guess."""
    return os.urandom(8).hex()


class InterpreterPipes:
    """The channel and the output files of an interpreter that is about to start."""

    def __init__(self) -> None:
        self.ours, self._theirs = socket.socketpair()
        self.out = os.memfd_create("out")
        self.err = os.memfd_create("err")
        self.ours.setsockopt(socket.SOL_SOCKET, SO_PASSCRED, 1)
        self.ours.setblocking(False)

    @property
    def theirs(self) -> InterpreterDescriptors:
        """Return the descriptors for the other side."""
        return InterpreterDescriptors(self._theirs.fileno(), self.out, self.err)

    def close_theirs(self) -> None:
        """Close our copy of the other side's end of the channel."""
        self._theirs.close()

    def close(self) -> None:
        """Close everything."""
        self.close_theirs()
        self.ours.close()
        os.close(self.out)
        os.close(self.err)


@dataclass
class InterpreterProcess:
    """A live interpreter."""

    number: int
    process: HeldProcess
    wires: InterpreterPipes
    output_bytes: int
    ancestors: frozenset[int] = frozenset()
    """Lives whose user namespaces this one's is below: its processes count as theirs, too."""
    world: int = field(init=False)
    """The user namespace, which says whose a stray process is."""
    view: int = field(init=False)
    """The mount namespace."""

    def __post_init__(self) -> None:
        self.world = processes.read_userns(self.pid)
        self.view = processes.read_mntns(self.pid)

    @property
    def pid(self) -> int:
        """Return its number."""
        return self.process.pid

    def output(self) -> tuple[str, str, bool]:
        """Return the output since the last cell, and whether some of it was left out."""
        out, cut_out = OutputCapture(self.wires.out, self.output_bytes).take(dead=True)
        err, cut_err = OutputCapture(self.wires.err, self.output_bytes).take(dead=True)
        return out, err, cut_out or cut_err
