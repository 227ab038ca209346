"""The other end of a filter that asks: one process decides on single system calls of another.

The kernel holds the caller until it is answered. Only the number and the arguments in registers
may be judged: what an argument points to can change between the answer and the call.
"""

import errno
import fcntl
import os
import select
import struct
from dataclasses import dataclass

from agentrl_sandbox.inside import kernel

_NOTIFICATION = struct.Struct("=QIIiIQ6Q")  # id, pid, flags, number, architecture, rip, arguments
_RESPONSE = struct.Struct("=QqiI")  # id, value, error, flags
_READ, _WRITE = 2, 1
_CONTINUE = 1


def _request(direction: int, number: int, size: int) -> int:
    return direction << 30 | size << 16 | ord("!") << 8 | number


_RECEIVE = _request(_READ | _WRITE, 0, _NOTIFICATION.size)
_SEND = _request(_READ | _WRITE, 1, _RESPONSE.size)


@dataclass(frozen=True, slots=True)
class PendingSyscall:
    """A system call that waits for an answer."""

    id: int
    pid: int
    """The thread that calls, as the reader's pid namespace numbers it; 0 when it is not in it."""
    number: int
    args: tuple[int, int, int, int, int, int]
    """The registers, unsigned."""


def is_available() -> bool:
    """Say whether this kernel can hand system calls to another process."""
    return kernel.notification_sizes() is not None


class SyscallListener:
    """The descriptor that `kernel.install_filter_with_listener` gave, in whichever process."""

    def __init__(self, fd: int) -> None:
        sizes = kernel.notification_sizes()
        if sizes is None:
            raise OSError(
                errno.ENOSYS, "this kernel cannot forward system calls to other processes"
            )
        self._fd = fd
        # A newer kernel may write more than we know of; it says how much.
        self._notification_bytes = max(sizes[0], _NOTIFICATION.size)
        self._response_bytes = max(sizes[1], _RESPONSE.size)
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)

    def fileno(self) -> int:
        """Return the descriptor: readable when a call waits, hung up when nobody is left to ask."""
        return self._fd

    def close(self) -> None:
        """Stop listening: calls that ask from now on answer ENOSYS. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def next(self) -> PendingSyscall | None:
        """Return a call that waits, or None when none does. Never blocks."""
        while any(events & select.POLLIN for _, events in self._poll.poll(0)):
            buffer = bytearray(self._notification_bytes)
            try:
                fcntl.ioctl(self._fd, _RECEIVE, buffer)
            except FileNotFoundError:
                continue  # the caller was killed since
            id_, pid, _, number, _, _, *args = _NOTIFICATION.unpack_from(buffer)
            return PendingSyscall(
                id_, pid, number, (args[0], args[1], args[2], args[3], args[4], args[5])
            )
        return None

    def is_abandoned(self) -> bool:
        """Say whether nobody is left who could ask."""
        return any(events & select.POLLHUP for _, events in self._poll.poll(0))

    def allow(self, asked: PendingSyscall) -> bool:
        """Let the call go on; False when nobody waits for it, or the kernel (before 5.5) cannot.

        Who counts what it allows counts True.
        """
        try:
            return self._answer(asked, 0, _CONTINUE)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self.refuse(asked)
            return False

    def refuse(self, asked: PendingSyscall) -> bool:
        """Have the call fail with EPERM; False when nobody waits for it."""
        return self._answer(asked, -errno.EPERM, 0)

    def _answer(self, asked: PendingSyscall, error: int, flags: int) -> bool:
        buffer = bytearray(self._response_bytes)
        _RESPONSE.pack_into(buffer, 0, asked.id, 0, error, flags)
        try:
            fcntl.ioctl(self._fd, _SEND, buffer)
        except OSError as failure:
            if failure.errno in (errno.ENOENT, errno.EINPROGRESS):  # dead, or answered already
                return False
            raise
        return True
