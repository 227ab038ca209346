"""Heap of a serving process, left out of Python's garbage collection.

A full pass goes through every object of the process and stops it: 0.2 s where torch and
transformers are imported, more on a slow machine or with more imported. Whoever has many objects
made at once (a page that asks for thousands of things) sets such passes off.
"""

import gc
import threading
from collections.abc import Generator
from contextlib import contextmanager

_lock = threading.Lock()
_blocks = 0
_is_ours = False


@contextmanager
def frozen_heap() -> Generator[None]:
    """Keep the collector from going through what exists now, until the block ends.

    Garbage is collected first. A cycle of objects from before is not freed within the block; all
    else is, as ever. Blocks within a block, and beside it in other threads, change nothing, nor
    does a block in a process that has called `gc.freeze` itself.
    """
    global _blocks, _is_ours
    with _lock:
        _blocks += 1
        if _blocks == 1:
            _is_ours = gc.get_freeze_count() == 0
            if _is_ours:
                gc.collect()
                gc.freeze()
    try:
        yield
    finally:
        with _lock:
            _blocks -= 1
            if _blocks == 0 and _is_ours:
                gc.unfreeze()
