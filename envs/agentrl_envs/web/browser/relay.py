"""Stands between Playwright's driver and one browser, as a script: bounds what the browser says.

A page decides how large and how many the messages about it are: a request's body, an address, a
title, events without end. The driver and the trainer read them whole, for all pages. What is over a
limit never gets there: an answer becomes an error, an event the crash of its page, and a page
that has used up its events is told of no more.

    driver ── fd 3 ──► relay ── fd 3 ──► browser
           ◄── fd 4 ──       ◄── fd 4 ──

Messages are JSON, each with a NUL behind it. Standard library only, and no import of agentrl: it
runs with `-I -S`.
"""

import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator

MAX_EVENT_BYTES = 4 * 2**20
"""Of one event: what a page did by itself, a request with its body among it."""
MAX_REPLY_BYTES = 24 * 2**20
"""Of one answer: a screenshot, a look at the page."""
BURST_EVENTS, EVENTS_PER_S = 20_000, 2_000
"""Of one debugging session, which is about one page: at once, and as they become free again."""
BURST_BYTES, BYTES_PER_S = 64 * 2**20, 8 * 2**20

_READ_BYTES = 256 * 2**10
_END = 256
"""Bytes at the end of a message that hold its session."""
_SESSION = re.compile(rb'"sessionId":"([0-9A-F]{1,64})"\}$')
_REPLY = re.compile(rb'\{"id":([0-9]{1,18}),')
_CRASH = b'{"method":"Inspector.targetCrashed","params":{}%s}\0'
_REFUSAL = b'{"id":%s,"error":{"code":-32000,"message":"the answer is over the limit"}%s}\0'


class SessionBudget:
    """Budget of events and bytes of one session."""

    def __init__(self, now_s: float) -> None:
        self.spent = False
        """Whether it was over once."""
        self._events = float(BURST_EVENTS)
        self._bytes = float(BURST_BYTES)
        self._filled_s = now_s

    def admits(self, size: int, now_s: float) -> bool:
        """Count one event of so many bytes; whether it is within the budget."""
        passed_s, self._filled_s = now_s - self._filled_s, now_s
        self._events = min(BURST_EVENTS, self._events + passed_s * EVENTS_PER_S) - 1
        self._bytes = min(BURST_BYTES, self._bytes + passed_s * BYTES_PER_S) - size
        self.spent = self.spent or self._events < 0 or self._bytes < 0
        return not self.spent


class MessageGate:
    """Lets a browser's messages through, or what stands for them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._held = bytearray()
        self._start = b""
        """Of a message of which the middle is dropped already."""
        self._dropped = 0
        self._sessions: dict[bytes, SessionBudget] = {}

    def feed(self, data: bytes) -> bytes:
        """Return the whole messages for the driver, each with its NUL."""
        return b"".join(self._split_messages(data))

    def _split_messages(self, data: bytes) -> Iterator[bytes]:
        *ends, rest = data.split(b"\0")
        for end in ends:
            self._hold(end)
            yield self._admit_message()
            self._held.clear()
            self._start, self._dropped = b"", 0
        self._hold(rest)

    def _hold(self, data: bytes) -> None:
        self._held += data
        if len(self._held) > MAX_REPLY_BYTES:
            self._start = self._start or bytes(self._held[:_END])
            self._dropped += len(self._held) - _END
            del self._held[:-_END]

    def _admit_message(self) -> bytes:
        message = self._held
        size = self._dropped + len(message)
        end = _SESSION.search(message, max(0, len(message) - _END))
        session = b"" if end is None else end[1]
        session_field = b',"sessionId":"%s"' % session if session else b""
        reply = _REPLY.match(self._start or message)
        if reply is not None:
            fits = size <= MAX_REPLY_BYTES
            return bytes(message) + b"\0" if fits else _REFUSAL % (reply[1], session_field)
        if not session:
            # About the browser: pages cannot make these large.
            return bytes(message) + b"\0" if size <= MAX_EVENT_BYTES else b""
        now_s = self._clock()
        budget = self._sessions.get(session)
        if budget is None:
            budget = self._sessions[session] = SessionBudget(now_s)
        if budget.spent:
            return b""
        if budget.admits(size, now_s) and size <= MAX_EVENT_BYTES:
            return bytes(message) + b"\0"
        budget.spent = True
        return _CRASH % session_field


def main(command: list[str]) -> int:
    """Start the browser and relay until it ends; return its exit status."""
    from_driver, to_browser = os.pipe()
    from_browser, to_driver = os.pipe()
    actions = [(os.POSIX_SPAWN_DUP2, from_driver, 3), (os.POSIX_SPAWN_DUP2, to_driver, 4)]
    pid = os.posix_spawn(command[0], command, os.environ, file_actions=actions)
    os.close(from_driver)
    os.close(to_driver)
    threading.Thread(target=_copy, args=(3, to_browser), daemon=True).start()
    gate = MessageGate()
    while data := os.read(from_browser, _READ_BYTES):
        _write(4, gate.feed(data))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _copy(source: int, target: int) -> None:
    try:
        while data := os.read(source, _READ_BYTES):
            _write(target, data)
    except OSError:
        pass
    os.close(target)


def _write(target: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(target, view) :]


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]) % 256)
    except BrokenPipeError:  # the driver has gone, and with it whoever reads
        sys.exit(1)
