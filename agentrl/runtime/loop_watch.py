"""Code of the user's that keeps an event loop from everything else, named by its line."""

import asyncio
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache

from agentrl.runtime.user_code import frame_place

LIMIT_S = 10.0
"""Longest time that a line of the user's may keep the loop without being named."""
_BEATS = 20
"""Looks at the loop in this time."""
_STOPPING_BEATS = 4
"""Looks at the end of which a stop that takes longer is explained."""

_STOPPING = (
    "stopping: what cannot be left half done, such as an update of the weights, is finished first; "
    "Ctrl-C twice more does not wait for it, and what is on disk stays good"
)

_STOPS = (signal.SIGINT, signal.SIGTERM)

_log = logging.getLogger(__name__)


@contextmanager
def watch_loop(limit_s: float = LIMIT_S) -> Generator[None]:
    """Warn, inside the block, of each line of the user's that blocks the running loop.

    Deadlines and cancellations are the loop's to deliver, so none reaches a coroutine that blocks.
    Where the task of this block was cancelled by a first Ctrl-C in the main thread, there is a
    second one for the line that blocks. A stop that takes its time is explained. Where a line
    blocks in code that is not Python's, which hears no signal, Ctrl-C and SIGTERM end the process.
    """
    with _stop_signals() as signals:
        watch = _LoopWatch(limit_s, signals)
        thread = threading.Thread(target=watch.run, name="loop watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            watch.ended.set()
            thread.join()  # it reads a pipe that is closed now


@contextmanager
def _stop_signals() -> Generator[int | None]:
    """Yield a pipe that tells of signals as they come, whatever the main thread is at.

    None where this is no main thread, or signals are told to somebody else.
    """
    if threading.current_thread() is not threading.main_thread():
        yield None
        return
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        if before == -1:
            yield reader
        else:
            signal.set_wakeup_fd(before)
            yield None
    finally:
        if before == -1 and (now := signal.set_wakeup_fd(-1)) not in (-1, writer):
            signal.set_wakeup_fd(now)
        os.close(writer)
        os.close(reader)


class _LoopWatch:
    def __init__(self, limit_s: float, signals: int | None) -> None:
        self.ended = threading.Event()
        self._limit_s = limit_s
        self._signals = signals
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._thread_id = threading.get_ident()
        self._beat_s = time.monotonic()

    def run(self) -> None:
        """Look at the loop until the block ends."""
        before, stopping_beats = "", 0
        stop_at_s, stop_signal = math.inf, 0
        while not self.ended.wait(self._limit_s / _BEATS):
            stopping_beats += self._is_stopping()
            if stopping_beats == _STOPPING_BEATS:
                _log.warning(_STOPPING)
            place = self._find_place() if time.monotonic() - self._beat_s >= self._limit_s else ""
            if place and place == before:  # twice, for a process that was stopped goes on somewhere
                self._tell(place)
            if (number := self._read_stop()) and stop_at_s == math.inf:
                stop_at_s, stop_signal = time.monotonic(), number
            # By now the second Ctrl-C of `_tell` has had its time.
            if place and time.monotonic() - max(stop_at_s, self._beat_s) >= 2 * self._limit_s:
                _end_process(place, stop_signal)
            before = place
            try:
                self._loop.call_soon_threadsafe(self._beat)
            except RuntimeError:  # it is closed
                return

    def _is_stopping(self) -> bool:
        return self._task is not None and self._task.cancelling() > 0

    def _read_stop(self) -> int:
        """Return a signal that asked for a stop since the last look, else 0."""
        if self._signals is None:
            return 0
        try:
            numbers = os.read(self._signals, 4096)
        except BlockingIOError:  # there is none
            return 0
        return next((number for number in numbers if number in _STOPS), 0)

    def _beat(self) -> None:
        self._beat_s = time.monotonic()

    def _find_place(self) -> str:
        frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage] - what debuggers use
        return frame_place(frames.get(self._thread_id), outermost="asyncio")

    def _tell(self, place: str) -> None:
        _warn_of_block(place, self._limit_s)
        if self._is_stopping() and self._thread_id == threading.main_thread().ident:
            signal.pthread_kill(self._thread_id, signal.SIGINT)


def _end_process(place: str, number: int) -> None:
    """End the process: what blocks it does not return to Python, where signals are heard."""
    _log.error(
        "%s does not return, and hears no signal: the process ends now, by %s; what is on disk "
        "stays good",
        place,
        signal.Signals(number).name,
    )
    os._exit(128 + number)


@cache
def _warn_of_block(place: str, seconds: float) -> None:
    """Warn of a line that blocks, once."""
    _log.warning(
        "%s blocks all episodes, for %g s so far: an `async def` must not block, for neither "
        "deadlines nor Ctrl-C reach it; await asyncio.to_thread(...) for what does",
        place,
        seconds,
    )
