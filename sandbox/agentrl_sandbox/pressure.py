"""Rules of admission, as arithmetic on a clock that is given: rate of starts, free memory."""

from collections.abc import Callable

READ_EVERY_S = 0.05
"""Greatest age of a reading of the machine's memory."""
START_BYTES = 8 * 2**20
"""Memory that a session takes at once; counted until the next reading shows it."""
REOPEN_BYTES_MAX = 256 * 2**20
"""After a shortage a quarter more than must be free has to be, and never more than this more."""


class TokenBucket:
    """A bucket of `burst` tokens that gets `per_s` of them a second.

    In any `w` seconds at most `burst + per_s * w` are taken. What is kept is the time at which the
    bucket will be full again, so that nothing has to be added up meanwhile.
    """

    def __init__(self, *, per_s: float, burst: int) -> None:
        self._interval_s = 1 / per_s
        self._depth_s = (burst - 1) * self._interval_s
        self._full_at_s = float("-inf")

    def wait_s(self, now_s: float) -> float:
        """Return 0 when there is a token, or the seconds until there is one."""
        return max(0.0, self._full_at_s - self._depth_s - now_s)

    def take(self, now_s: float) -> None:
        """Take a token."""
        self._full_at_s = max(self._full_at_s, now_s) + self._interval_s

    def give_back(self) -> None:
        """Return a token that was taken and not used."""
        self._full_at_s -= self._interval_s


class MemoryReading:
    """The machine's available memory, read now and then; shared by every pool of a process."""

    def __init__(self, read: Callable[[], int]) -> None:
        self._read = read
        self._read_at_s = float("-inf")
        self._available_bytes = 0

    def available_bytes(self, now_s: float) -> int:
        """Return the available memory, less what was promised since the last reading."""
        if now_s - self._read_at_s >= READ_EVERY_S:
            self._read_at_s = now_s
            self._available_bytes = self._read()
        return self._available_bytes

    def take(self) -> None:
        """Count a session that is about to start."""
        self._available_bytes -= START_BYTES


class MemoryValve:
    """Shut while too little memory is available; opens again a good deal later than it shut."""

    def __init__(self, free_bytes: int) -> None:
        self._free_bytes = free_bytes
        self.shut = False
        """Whether nothing may start, as of the last time somebody asked."""

    def is_open(self, available_bytes: int) -> bool:
        """Return whether a session may start with so much memory available."""
        more_bytes = min(self._free_bytes // 4, REOPEN_BYTES_MAX) if self.shut else 0
        self.shut = available_bytes < self._free_bytes + more_bytes
        return not self.shut
