"""Synchronous code of others, kept off the event loop."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


async def in_thread(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a blocking function in a thread of its own and return what it returns.

    A thread cannot be stopped: a cancelled caller goes on at once, and the abandoned thread is a
    daemon that cannot keep the process alive. That is why this is not `asyncio.to_thread`, whose
    pool is joined at exit and which a few hung functions would fill.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[R] = loop.create_future()
    context = contextvars.copy_context()

    def settle(result: Any, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)

    def work() -> None:
        result, error = None, None
        try:
            result = context.run(function, *args, **kwargs)
        except BaseException as caught:  # noqa: BLE001 - handed to the caller, whoever that is
            error = caught
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, result, error)

    name = f"agentrl-{getattr(function, '__name__', 'call')}"
    threading.Thread(target=work, name=name, daemon=True).start()
    return await done
