"""Memory of a process that is its own: pages of files, which can be dropped, do not count."""

import re
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


def own_bytes() -> int:
    """Return the anonymous memory of this process."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    found = re.search(r"RssAnon:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


class MemoryPeak:
    """The most that a process has had since it began to be watched, beyond what it had then."""

    def __init__(self) -> None:
        self._first = own_bytes()
        self.bytes = 0

    def look(self) -> None:
        """Take what there is now into account."""
        self.bytes = max(self.bytes, own_bytes() - self._first)


@contextmanager
def watch_memory(every_s: float = 0.001) -> Generator[MemoryPeak]:
    """Watch this process's own memory in the block."""
    peak, done = MemoryPeak(), threading.Event()

    def watch() -> None:
        while not done.is_set():
            peak.look()
            time.sleep(every_s)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        peak.look()
        done.set()
        thread.join()
