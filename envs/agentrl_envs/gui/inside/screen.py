"""Content of the screen: its pixels, out of the X server's own memory, and the wait for rest."""

import mmap
import struct
import time
import zlib
from collections.abc import Callable

_HEADER = struct.Struct(">25I")
_COLOUR_BYTES = 12
_POLL_S = 0.02
_NOISE_NS = 3_000_000
"""CPU time of programs in a poll that still counts as idle: timers that change nothing."""


class FrameBuffer:
    """The frame buffer, which Xvfb keeps in a file in the format of xwd."""

    def __init__(self, path: str) -> None:
        with open(path, "rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        header = _HEADER.unpack_from(self._map)
        self.width, self.height = header[4], header[5]
        self.line_bytes = header[12]
        if header[11] != 32:
            raise ValueError(f"the screen has {header[11]} bits per pixel, not 32")
        self._start = header[0] + header[19] * _COLOUR_BYTES

    def pixels(self) -> bytes:
        """Return the picture: lines of `line_bytes`, a pixel as blue, green, red and nothing."""
        return self._map[self._start : self._start + self.line_bytes * self.height]

    def fingerprint(self) -> int:
        """Return a number that is another one when the picture is."""
        end = self._start + self.line_bytes * self.height
        with memoryview(self._map) as view, view[self._start : end] as picture:
            return zlib.crc32(picture)

    def wait_for_rest(
        self,
        load: Callable[[], tuple[int, int]],
        find_next_timer_s: Callable[[], float],
        still_s: float,
        deadline_s: float,
    ) -> bool:
        """Wait until nothing can change by itself; return whether that came in time.

        That is so when no program has run between two looks and none sleeps with a timer of
        `still_s` or less; otherwise when nothing changes and nobody computes for `still_s`. A
        program that waits for a processor is not at rest, so a busy machine only takes longer.
        """
        end_s = time.monotonic() + deadline_s
        since_s, last = time.monotonic(), (self.fingerprint(), load()[1])
        while True:
            time.sleep(_POLL_S)
            now_s, picture, (wanting, had_ns) = time.monotonic(), self.fingerprint(), load()
            if wanting or picture != last[0] or had_ns - last[1] > _NOISE_NS:
                since_s = now_s
            is_idle = not wanting and last == (picture, had_ns)
            last = (picture, had_ns)
            if now_s - since_s >= still_s or (is_idle and find_next_timer_s() > still_s):
                return True
            if now_s > end_s:
                return False
