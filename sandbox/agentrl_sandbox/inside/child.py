"""The keeper's view of one interpreter process: its channel, its output, its end."""

import os
import selectors
import signal
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from agentrl_sandbox.inside import processes
from agentrl_sandbox.inside.frames import Frame, Reader, encode
from agentrl_sandbox.inside.interpreter import Endpoints
from agentrl_sandbox.inside.link import Link
from agentrl_sandbox.inside.output import Clipped

_PIPE_CHUNK_BYTES = 2**16
_DRAIN_CHUNKS_MAX = 64
_LAST_BREATH_S = 0.2
"""A process that exits closes its channel a moment before it is gone."""
_SOL_SOCKET, _SO_PASSCRED, _SCM_CREDENTIALS = socket.SOL_SOCKET, 16, 2


@dataclass(frozen=True)
class Death:
    """How an interpreter ended, and the CPU time it used."""

    signal: int = 0
    code: int = 0
    cpu_s: float = 0.0

    @property
    def text(self) -> str:
        """Return the end in words."""
        if not self.signal:
            return f"the interpreter ended with exit status {self.code}"
        try:
            name = signal.Signals(self.signal).name
        except ValueError:
            name = f"signal {self.signal}"
        return f"the interpreter was killed by {name}"


def nonce() -> str:
    """Return 16 hexadecimal digits nobody can guess."""
    return os.urandom(8).hex()


class Pipes:
    """The channel and the output pipes of an interpreter that is about to start.

    With `identify` the kernel vouches for who sends.
    """

    def __init__(self, *, identify: bool = False) -> None:
        self.ours, self._theirs = socket.socketpair()
        if identify:
            self.ours.setsockopt(_SOL_SOCKET, _SO_PASSCRED, 1)
        self.out, self._out = os.pipe()
        self.err, self._err = os.pipe()
        os.set_blocking(self.out, False)
        os.set_blocking(self.err, False)

    @property
    def theirs(self) -> Endpoints:
        """Return the descriptors for the other side."""
        return Endpoints(self._theirs.fileno(), self._out, self._err)

    def close_theirs(self) -> None:
        """Close our copies of the other side's ends."""
        self._theirs.close()
        os.close(self._out)
        os.close(self._err)

    def close_ours(self) -> None:
        """Close our ends, when no interpreter came of it."""
        self.ours.close()
        os.close(self.out)
        os.close(self.err)

    def sender(self, expected_nonce: str) -> int:
        """Return the process id, vouched for by the kernel, of who sent the expected greeting.

        `ValueError` when the message is anything else.
        """
        space = socket.CMSG_SPACE(12)
        data, ancillary, _, _ = self.ours.recvmsg(2**12, space)
        frames = Reader(json_bytes_max=2**10, blob_bytes_max=0).feed(data)
        if len(frames) != 1 or frames[0].body != {"nonce": expected_nonce, "hello": True}:
            raise ValueError("the copy did not greet as agreed")
        for level, kind, value in ancillary:
            if (level, kind) == (_SOL_SOCKET, _SCM_CREDENTIALS):
                return int.from_bytes(value[:4], "little", signed=True)
        raise ValueError("the greeting carries no credentials")


class Child:
    """A live interpreter. Every frame it sends must carry the nonce it is expected to."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        pipes: Pipes,
        pid: int,
        *,
        output_bytes: int,
        on_reply: Callable[["Child", dict[str, Any]], None],
        on_death: Callable[["Child"], None],
        on_violation: Callable[["Child", str], None],
    ) -> None:
        self.pid = pid
        self.pidfd = os.pidfd_open(pid)
        self._selector = selector
        self._pipes = pipes
        self._output_bytes = output_bytes
        self._on_reply = on_reply
        self._on_death = on_death
        self._on_violation = on_violation
        self._expected: deque[str] = deque()
        self._open = True
        reader = Reader(json_bytes_max=16 * output_bytes + 2**17, blob_bytes_max=0)
        self.link = Link(
            selector, pipes.ours, on_frame=self._frame, on_end=self._mute, reader=reader
        )
        self.clear()
        selector.register(self.pidfd, selectors.EVENT_READ, self._ended)
        selector.register(pipes.out, selectors.EVENT_READ, partial(self._readable, pipes.out))
        selector.register(pipes.err, selectors.EVENT_READ, partial(self._readable, pipes.err))

    def expect(self, expected_nonce: str) -> str:
        """Expect a frame with this nonce after those already expected."""
        self._expected.append(expected_nonce)
        return expected_nonce

    def ask(self, body: dict[str, Any]) -> None:
        """Send a request whose reply must carry a fresh nonce."""
        self.link.send(encode({**body, "nonce": self.expect(nonce())}))

    def clear(self) -> None:
        """Forget captured output."""
        self.streams = {
            fd: Clipped(self._output_bytes) for fd in (self._pipes.out, self._pipes.err)
        }

    def drain(self) -> None:
        """Take in the output that has been written by now."""
        for fd in self.streams:
            for _ in range(_DRAIN_CHUNKS_MAX):
                if not self._pump(fd):
                    break

    @property
    def stdout(self) -> Clipped:
        """Return the captured standard output."""
        return self.streams[self._pipes.out]

    @property
    def stderr(self) -> Clipped:
        """Return the captured standard error."""
        return self.streams[self._pipes.err]

    def end(self) -> Death:
        """Kill the interpreter, wait for its end and let go of it; its orphans are left over."""
        processes.kill(self.pid)
        status, usage = processes.wait_end(self.pid, self.pidfd)
        self.drain()
        self._close()
        if status is None or usage is None:
            return Death(signal=signal.SIGKILL)
        cpu_s = usage.ru_utime + usage.ru_stime
        code = os.waitstatus_to_exitcode(status)
        return Death(signal=max(0, -code), code=max(0, code), cpu_s=cpu_s)

    def _frame(self, frame: Frame) -> None:
        if not self._expected or frame.body.get("nonce") != self._expected[0]:
            self._on_violation(self, "a message that answers no request")
            return
        self._expected.popleft()
        self._on_reply(self, frame.body)

    def _mute(self, reason: str) -> None:
        """Its end of the channel is closed or speaks no frames: nothing more can come of it."""
        if processes.ended(self.pidfd, within_s=_LAST_BREATH_S):
            self._ended(0)
        else:
            self._on_violation(self, f"the channel broke ({reason})")

    def _ended(self, _: int) -> None:
        if self._open:
            self._on_death(self)

    def _readable(self, fd: int, _: int) -> None:
        self._pump(fd)

    def _pump(self, fd: int) -> bool:
        """Read a piece of output; False when there is none."""
        if not self._open:
            return False
        try:
            data = os.read(fd, _PIPE_CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not data:
            if fd in self._selector.get_map():
                self._selector.unregister(fd)
            return False
        self.streams[fd].add(data)
        return True

    def _close(self) -> None:
        self._open = False
        self.link.close()
        for fd in (self.pidfd, self._pipes.out, self._pipes.err):
            if fd in self._selector.get_map():
                self._selector.unregister(fd)
            os.close(fd)
