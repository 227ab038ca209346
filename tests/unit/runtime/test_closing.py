"""Many that are closed at once: one that does not close keeps no other from it.

Mutants seen caught: errors are swallowed; the first error ends the wait.
"""

import asyncio

import pytest

from agentrl.runtime.closing import close_all


class Thing:
    """Closes after some turns of the loop, with or without an error."""

    def __init__(self, turns: int, error: Exception | None = None) -> None:
        self.turns, self.error, self.is_closed = turns, error, False

    async def close(self) -> None:
        for _ in range(self.turns):
            await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        self.is_closed = True


async def test_all_are_closed_when_it_returns() -> None:
    things = [Thing(0), Thing(9), Thing(3)]
    await close_all(things)
    assert all(thing.is_closed for thing in things)


async def test_one_that_breaks_is_told_when_the_others_are_closed() -> None:
    things = [Thing(9), Thing(0, OSError("gone")), Thing(20), Thing(3, ValueError("late"))]
    with pytest.raises(OSError, match="gone"):
        await close_all(things)
    assert things[0].is_closed
    assert things[2].is_closed
