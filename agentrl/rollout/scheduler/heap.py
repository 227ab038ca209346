"""A heap read in order, without taking anything off it."""

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from typing import Any, TypeVar

T = TypeVar("T", bound=tuple[Any, ...])


def in_order(heap: Sequence[T]) -> Iterator[T]:
    """Yield the entries of a heap of `heapq`, the least first; the first k cost k log k."""
    front = [(heap[0], 0)] if heap else []
    while front:
        entry, at = heappop(front)
        yield entry
        for child in (2 * at + 1, 2 * at + 2):
            if child < len(heap):
                heappush(front, (heap[child], child))
