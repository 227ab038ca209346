"""An event loop in virtual time: when nothing is ready, its clock jumps to the next timer."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

R = TypeVar("R")


class NothingLeftToHappen(RuntimeError):
    """Everything waits, and no timer is set: in virtual time that is a deadlock."""


class _JumpingSelector(selectors.DefaultSelector):
    """A selector that never blocks: where another one would sleep, it moves the clock."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if events or timeout == 0:
            return events
        if timeout is None:
            raise NothingLeftToHappen(
                "every coroutine waits but no timer is set, and in virtual time nothing outside "
                "the event loop can wake one: use no threads and no sockets"
            )
        self.now_s += max(0.0, timeout)
        return events


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose `time` starts at 0 s and costs nothing."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s


def run_virtual(main: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine in virtual time to its end, as `asyncio.run` would in real time.

    Raises `NothingLeftToHappen` when it can never end.
    """
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
