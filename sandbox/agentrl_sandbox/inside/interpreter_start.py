"""Start of an interpreter: the greetings between it, its keeper, and the host.

    fresh   keeper forks ─► hardens itself ─► hello + listener ─► settle ─► hello to the host
    copy    original forks ─► hello ─► own namespaces ─► its files appear ─► settle ─► hello to host
    spare   original forks ─► hello ─► waits until it is needed ─► settle ─► hello to the host

Until it is settled the newborn speaks to the keeper, and from then on only to the host.
"""

import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from agentrl_sandbox.inside import kernel, session_directory
from agentrl_sandbox.inside.command import CommandNamespace, RunningCommand
from agentrl_sandbox.inside.cpu_time import CpuMeter
from agentrl_sandbox.inside.frames import START_S, ChannelFrameReader, FrameError, encode
from agentrl_sandbox.inside.interpreter_process import (
    SCM_CREDENTIALS,
    SO_PASSCRED,
    HeldProcess,
    InterpreterPipes,
    InterpreterProcess,
    nonce,
)
from agentrl_sandbox.inside.processes import read_mntns
from agentrl_sandbox.inside.session_directory import SessionDirectory
from agentrl_sandbox.inside.syscall_listener import PendingSyscall, SyscallListener

Kind = Literal["fresh", "copy", "spare"]

_GREETING_BYTES_MAX = 2**12
_make_reader = partial(ChannelFrameReader, json_bytes_max=_GREETING_BYTES_MAX, blob_bytes_max=0)
_SPACE = socket.CMSG_SPACE(12) + socket.CMSG_SPACE(4)
APART = kernel.CLONE_NEWUSER | session_directory.OWN
"""Namespaces that a copy unshares."""


@dataclass
class SessionState:
    """One session: a place for its files, and an interpreter when there is one."""

    id: int
    place: SessionDirectory
    life: InterpreterProcess | None = None
    spare: "InterpreterStart | None" = None
    """The interpreter as it was before the cell that runs now, waiting to take its place."""
    commands: dict[int, RunningCommand] = field(default_factory=dict)
    """Commands by request, while somebody waits for them."""
    world: CommandNamespace | None = None
    """User namespace of its commands; made for the first one."""
    worlds: set[int] = field(default_factory=set[int])
    """User namespaces of its processes: what a process left behind belongs to."""
    cpu_s: float = 0.0
    """Used by processes that are dead and were waited for."""
    meter: CpuMeter = field(default_factory=CpuMeter)
    """CPU time that all of its processes were seen to use."""

    @property
    def used_cpu_s(self) -> float:
        """CPU time it has used, as far as is known."""
        return max(self.cpu_s, self.meter.used_s)


class InterpreterStartError(Exception):
    """No interpreter comes of it; says why."""


@dataclass
class InterpreterStart:
    """An interpreter that has not been settled yet."""

    kind: Kind
    request: int
    """Request of the host; it is answered when the interpreter can be spoken to."""
    session: SessionState
    wires: InterpreterPipes
    origin: InterpreterProcess | None = None
    """The interpreter that is being copied."""
    process: HeldProcess = field(default_factory=HeldProcess)
    nonce: str = field(default_factory=nonce)
    listener: SyscallListener | None = None
    deadline_s: float = field(default_factory=lambda: time.monotonic() + START_S)
    _reader: ChannelFrameReader = field(default_factory=_make_reader)

    @property
    def apart(self) -> bool:
        """Return whether it gets namespaces of its own before it is settled."""
        return self.kind == "copy" and self.session.place.is_detached

    @property
    def ancestors(self) -> frozenset[int]:
        """Return the lives in whose user namespaces it is counted."""
        if self.origin is None:
            return frozenset()
        return self.origin.ancestors | {self.origin.number}

    def read_greeting(self) -> str:
        """Read `hello`, `unshared`, or nothing yet. May raise `InterpreterStartError`."""
        try:
            data, ancillary, _, _ = self.wires.ours.recvmsg(
                _GREETING_BYTES_MAX, _SPACE, socket.MSG_CMSG_CLOEXEC
            )
            frames = self._reader.feed(data)
        except BlockingIOError:
            return ""
        except (OSError, FrameError) as error:
            raise InterpreterStartError(f"its channel failed: {error}") from error
        pid = self._unpack(ancillary)
        if not data:
            raise InterpreterStartError("it ended")
        if not frames:
            return ""
        body = frames[0].body
        if body.get("nonce") != self.nonce or len(frames) > 1:
            raise InterpreterStartError("its greeting was invalid")
        if "error" in body:
            raise InterpreterStartError(str(body["error"])[:1000])
        if not self.process.pid:
            try:
                self.process = HeldProcess(pid)
            except OSError as error:  # whoever greeted is gone, and perhaps no child of ours
                raise InterpreterStartError(f"it ended after its greeting: {error}") from error
        elif pid != self.process.pid:
            raise InterpreterStartError("another process greeted in its place")
        return "hello" if "hello" in body else "unshared"

    def _unpack(self, ancillary: list[tuple[int, int, bytes]]) -> int:
        """Return the sender, for whom the kernel vouches, and keep a listener that came along."""
        sender = 0
        for _, kind, packed in ancillary:
            if kind == SCM_CREDENTIALS:
                sender = int.from_bytes(packed[:4], "little", signed=True)
            else:
                for fd in memoryview(packed).cast("i").tolist():
                    if self.listener is None and self.kind == "fresh":
                        self.listener = SyscallListener(fd)
                    else:
                        os.close(fd)
        return sender

    def may_unshare(self, asked: PendingSyscall) -> bool:
        """Say whether this system call is the one that this birth needs."""
        return self.apart and asked.pid == self.process.pid and asked.args[0] == APART

    def settle(self, *, processes: int, own_namespaces: Mapping[int, int]) -> str:
        """Let it move in; return the nonce with which it will greet the host."""
        home = self.session.place
        if home.is_detached:
            # What it runs came from the original, which may have planted other things in it.
            view = read_mntns(self.process.pid)
            if self.origin is not None and view in (0, self.origin.view):
                raise InterpreterStartError("the copy has no namespaces of its own")
            try:
                session_directory.attach_directory(home, self.process.pid, own_namespaces)
            except OSError as error:
                raise InterpreterStartError(f"its files cannot be mounted: {error}") from error
        greeting = nonce()
        body = {"directory": home.path, "processes": processes, "nonce": greeting}
        try:
            self.wires.ours.setsockopt(socket.SOL_SOCKET, SO_PASSCRED, 0)
            self.wires.ours.sendall(encode(body))
        except OSError as error:
            raise InterpreterStartError(f"it does not listen: {error}") from error
        return greeting


def ask_copy(birth: InterpreterStart, *, keep_rng: bool) -> None:
    """Ask an interpreter for a copy of itself; may raise `InterpreterStartError`."""
    assert birth.origin is not None
    ends = birth.wires.theirs
    body = {"op": "fork", "nonce": birth.nonce, "keep_rng": keep_rng, "apart": birth.apart}
    fds = [ends.channel, ends.out, ends.err]
    try:
        socket.send_fds(birth.origin.wires.ours, [encode(body)], fds)
    except OSError as error:
        raise InterpreterStartError(f"the interpreter does not listen: {error}") from error
    finally:
        birth.wires.close_theirs()
