"""How long a loop stands still: nothing that a policy, a page or a peer says may hold it."""

import asyncio
import functools
import inspect
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, ParamSpec

from agentrl.runtime.heap import frozen_heap

P = ParamSpec("P")

STANDS_S = 0.5
"""The longest that a loop may stand: several times what any test takes on an idle processor.

A virtual machine counts the time that its host takes from it as a thread's own.
"""
_BEAT_S = 0.01


class LoopWatchdog:
    """Beats on a loop and keeps the longest time of its thread's processor between two beats.

    Of the processor, not of the wall: a machine that is busy with something else stands still too,
    and says nothing about the code. What waits without computing is not seen.
    """

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._last_s = 0.0

    async def beat(self) -> None:
        """Measure until it is cancelled."""
        self._last_s = time.thread_time()
        while True:
            await asyncio.sleep(_BEAT_S)
            self.look()

    def look(self) -> None:
        """Take the time since the last beat."""
        now_s = time.thread_time()
        self.longest_s = max(self.longest_s, now_s - self._last_s)
        self._last_s = now_s


@asynccontextmanager
async def watched_loop() -> AsyncGenerator[LoopWatchdog]:
    """Fail a block in which the loop stood for more than `STANDS_S`.

    The heap is frozen, as it is in every run: what other tests have left is no part of it.
    """
    with frozen_heap():
        watchdog = LoopWatchdog()
        beating = asyncio.ensure_future(watchdog.beat())
        await asyncio.sleep(_BEAT_S)
        try:
            yield watchdog
            watchdog.look()
        finally:
            beating.cancel()
            await asyncio.wait([beating])
    stood = f"the loop stood for {watchdog.longest_s:.2f} s of its processor"
    assert watchdog.longest_s <= STANDS_S, stood


def watched(test: Callable[P, Any]) -> Callable[P, Any]:
    """Fail a test in which the loop stood for more than `STANDS_S`.

    A test that is no coroutine calls what runs on loops elsewhere: all of it is one stretch.
    """
    if inspect.iscoroutinefunction(test):

        @functools.wraps(test)
        async def on_loop(*args: P.args, **kwargs: P.kwargs) -> None:
            async with watched_loop():
                await test(*args, **kwargs)

        return on_loop

    @functools.wraps(test)
    def alone(*args: P.args, **kwargs: P.kwargs) -> None:
        with frozen_heap():
            began_s = time.thread_time()
            test(*args, **kwargs)
            took_s = time.thread_time() - began_s
        assert took_s <= STANDS_S, f"a loop would have stood for {took_s:.2f} s of its processor"

    return alone
