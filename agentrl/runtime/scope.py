"""Ownership of resources that many environments share: a scope, opened and closed with a run.

An environment that needs something expensive (a sandbox supervisor, a browser) asks `shared` for
it. Inside a scope the first one opens it and everybody gets the same; the scope closes it.
Outside a scope there is nobody to close it: `shared` returns None and the environment owns one
itself.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Hashable
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from agentrl.runtime.closing import AsyncClosable
from agentrl.runtime.loop_watch import watch_loop

C = TypeVar("C", bound=AsyncClosable)


class RunScope:
    """Things opened once and closed together, last opened first."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._things: dict[Hashable, Any] = {}
        self._locks: defaultdict[Hashable, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def shared(self, key: Hashable, open_it: Callable[[], Awaitable[C]]) -> C:
        """Return the resource of `key`, opening it if this is the first time it is asked for."""
        async with self._locks[key]:
            if key not in self._things:
                thing = await open_it()
                self._stack.push_async_callback(thing.close)
                self._things[key] = thing
            return self._things[key]

    async def close(self) -> None:
        """Close everything that was opened."""
        self._things.clear()
        await self._stack.aclose()


_scope: ContextVar[RunScope | None] = ContextVar("agentrl_scope", default=None)


@asynccontextmanager
async def run_scope() -> AsyncGenerator[RunScope]:
    """Open a scope for everything that happens inside; a scope within a scope is the outer one.

    Who blocks its event loop is named.
    """
    if (outer := _scope.get()) is not None:
        yield outer
        return
    scope = RunScope()
    token = _scope.set(scope)
    try:
        with watch_loop():
            yield scope
    finally:
        _scope.reset(token)
        await scope.close()


async def shared(key: Hashable, open_it: Callable[[], Awaitable[C]]) -> C | None:
    """Return the resource of `key` in the current scope, or None when no scope is open."""
    scope = _scope.get()
    return None if scope is None else await scope.shared(key, open_it)


@contextmanager
def leave_scope() -> Generator[None]:
    """Hide the current scope inside the block: its things belong to the scope's event loop."""
    token = _scope.set(None)
    try:
        yield
    finally:
        _scope.reset(token)
