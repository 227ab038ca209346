"""An event loop in a thread of its own, for callers that are not asynchronous."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from agentrl.runtime.scope import leave_scope

T = TypeVar("T")
_STOP_S = 10.0


class LoopThread:
    """Runs coroutines for synchronous callers, also for those inside another running loop.

    The owner closes it. The thread is a daemon, so an owner that forgot cannot keep the process.
    """

    def __init__(self) -> None:
        ready: concurrent.futures.Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]]
        ready = concurrent.futures.Future()
        self._thread = threading.Thread(
            target=_serve, args=(ready,), name="agentrl-loop", daemon=True
        )
        self._thread.start()
        self._loop, self._stop = ready.result(_STOP_S)

    def run(self, work: Coroutine[Any, Any, T], *, timeout_s: float) -> T:
        """Run `work` and return its result; cancel it and raise `TimeoutError` after `timeout_s`.

        It sees the caller's context variables, except the scope, which belongs to another loop.
        """
        with leave_scope():
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_s)
        finally:
            future.cancel()

    def close(self) -> None:
        """Cancel what still runs and end the thread. Idempotent."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(_STOP_S)


def _serve(
    ready: "concurrent.futures.Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]]",
) -> None:
    async def run_until_stopped() -> None:
        stop = asyncio.Event()
        ready.set_result((asyncio.get_running_loop(), stop))
        await stop.wait()

    asyncio.run(run_until_stopped())
