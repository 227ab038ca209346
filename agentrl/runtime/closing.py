"""Closing of resources with their block, and of many at once."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Iterable
from types import TracebackType
from typing import Protocol, Self


class ClosingResource(ABC):
    """`async with` closes it, whatever happened in the block."""

    @abstractmethod
    async def close(self) -> None:
        """Release everything. Idempotent."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


class AsyncClosable(Protocol):
    """An object that can be closed."""

    async def close(self) -> None:
        """Release everything. Idempotent."""
        ...


async def close_all(ones: Iterable[AsyncClosable]) -> None:
    """Close all of them at once, wait for every one, then raise what kept the first from it."""
    await await_all(one.close() for one in ones)


async def await_all(calls: Iterable[Awaitable[object]]) -> None:
    """Await all of them at once, wait for every one, then raise the first error."""
    ends = await asyncio.gather(*calls, return_exceptions=True)
    for end in ends:
        if isinstance(end, BaseException):
            raise end
