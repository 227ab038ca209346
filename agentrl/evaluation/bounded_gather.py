"""Many things at a time, in order: bounded, ended together, and one error when one breaks."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from agentrl.errors import first_error

A = TypeVar("A")
R = TypeVar("R")


async def gather_bounded(
    function: Callable[[A], Awaitable[R]], arguments: Sequence[A], *, limit: int | None = None
) -> list[R]:
    """Return the results in order, at most `limit` at a time; the first error ends the others."""
    results: dict[int, R] = {}
    waiting = iter(enumerate(arguments))

    async def work() -> None:
        for place, argument in waiting:
            results[place] = await function(argument)

    with first_error():
        async with asyncio.TaskGroup() as running:
            for _ in range(min(limit or len(arguments), len(arguments))):
                running.create_task(work())
    return [results[place] for place in range(len(arguments))]
