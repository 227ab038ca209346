"""Seconds of single operations, and what is said of many of them."""

import statistics
import time
from collections.abc import Awaitable, Sequence
from typing import Any


async def timed(work: Awaitable[Any]) -> tuple[float, Any]:
    """Return how many seconds something took, and what it gave."""
    began = time.perf_counter()
    found = await work
    return time.perf_counter() - began, found


def middle_ms(seconds: Sequence[float]) -> float:
    """Return the median in milliseconds."""
    return statistics.median(seconds) * 1000
