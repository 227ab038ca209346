"""A worker that gives verdicts: a fork with limits of its own, asked again and again."""

import ctypes
import os
import resource
import signal
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

LATE, LARGE = 124, 125
"""Exit codes of a worker whose verdict took too much time, or too much memory."""
LOOK_CPU_S = 0.1
"""Processor time between two looks at both."""
FATAL_FACTOR = 4
"""The kernel's limits on both are so much wider: for code that never comes back to Python."""
_PR_SET_PDEATHSIG = 1


class VerdictWorker:
    """A worker, which gives one verdict after the other; `score` of a subclass is one."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        self.verdict_cpu_s = params["verdict_cpu_s"]
        self.begun_s = cpu_s()
        resident_bytes, data_bytes = memory_bytes()
        self.most_bytes = resident_bytes + params["memory_bytes"]
        most_data_bytes = data_bytes + FATAL_FACTOR * params["memory_bytes"]
        resource.setrlimit(resource.RLIMIT_DATA, (most_data_bytes, most_data_bytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGPROF, self.look)
        signal.setitimer(signal.ITIMER_PROF, LOOK_CPU_S, LOOK_CPU_S)

    @contextmanager
    def limited(self) -> Generator[None]:
        """Give one verdict within its limits; the process ends where it is beyond them."""
        self.begun_s = cpu_s()
        fatal_s = int(self.begun_s + FATAL_FACTOR * self.verdict_cpu_s) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (fatal_s, resource.RLIM_INFINITY))
        yield
        # One that took too much between two looks, and perhaps caught the MemoryError of that.
        if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 > self.most_bytes:
            os._exit(LARGE)

    def look(self, number: int, frame: FrameType | None) -> None:
        """End the process when a verdict takes too much; a verifier would catch an exception."""
        if cpu_s() - self.begun_s > self.verdict_cpu_s:
            os._exit(LATE)
        if memory_bytes()[0] > self.most_bytes:
            os._exit(LARGE)


def cpu_s() -> float:
    """Return the processor time of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def memory_bytes() -> tuple[int, int]:
    """Return the sizes of resident memory and of data, stack included."""
    with open("/proc/self/statm", "rb") as file:
        pages = [int(word) for word in file.read().split()]
    return pages[1] * resource.getpagesize(), pages[5] * resource.getpagesize()
