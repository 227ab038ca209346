"""Code of the user's that keeps an event loop from everything else, named by its line."""

import asyncio
import logging
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

_log = logging.getLogger(__name__)


@contextmanager
def watch_loop(limit_s: float = LIMIT_S) -> Generator[None]:
    """Warn, inside the block, of each line of the user's that blocks the running loop.

    Deadlines and cancellations are the loop's to deliver, so none reaches a coroutine that blocks.
    Where the task of this block was cancelled by a first Ctrl-C in the main thread, there is a
    second one for the line that blocks.
    """
    watch = _LoopWatch(limit_s)
    thread = threading.Thread(target=watch.run, name="loop watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        watch.ended.set()


class _LoopWatch:
    def __init__(self, limit_s: float) -> None:
        self.ended = threading.Event()
        self._limit_s = limit_s
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._thread_id = threading.get_ident()
        self._beat_s = time.monotonic()

    def run(self) -> None:
        """Look at the loop until the block ends."""
        before = ""
        while not self.ended.wait(self._limit_s / _BEATS):
            place = self._find_place() if time.monotonic() - self._beat_s >= self._limit_s else ""
            if place and place == before:  # twice, for a process that was stopped goes on somewhere
                self._tell(place)
            before = place
            try:
                self._loop.call_soon_threadsafe(self._beat)
            except RuntimeError:  # it is closed
                return

    def _beat(self) -> None:
        self._beat_s = time.monotonic()

    def _find_place(self) -> str:
        frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage] - what debuggers use
        return frame_place(frames.get(self._thread_id), outermost="asyncio")

    def _tell(self, place: str) -> None:
        _warn_of_block(place, self._limit_s)
        is_main = self._thread_id == threading.main_thread().ident
        if is_main and self._task is not None and self._task.cancelling():
            signal.pthread_kill(self._thread_id, signal.SIGINT)


@cache
def _warn_of_block(place: str, seconds: float) -> None:
    """Warn of a line that blocks, once."""
    _log.warning(
        "%s blocks all episodes, for %g s so far: an `async def` must not block, for neither "
        "deadlines nor Ctrl-C reach it; await asyncio.to_thread(...) for what does",
        place,
        seconds,
    )
