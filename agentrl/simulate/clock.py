"""An event loop in virtual time: when nothing is ready, its clock jumps to the next timer."""

import asyncio
import selectors
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

R = TypeVar("R")


class NothingLeftToHappen(RuntimeError):
    """Everything waits, and no timer is set: in virtual time that is a deadlock."""


class _Jumping(selectors.BaseSelector):
    """A selector that never blocks: where another one would sleep, it moves the clock."""

    def __init__(self) -> None:
        self._inner = selectors.DefaultSelector()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = self._inner.select(0)
        if events or timeout == 0:
            return events
        if timeout is None:
            raise NothingLeftToHappen(
                "every coroutine waits but no timer is set, and in virtual time nothing outside "
                "the event loop can wake one: use no threads and no sockets"
            )
        self.now_s += max(0.0, timeout)
        return events

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._inner.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._inner.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._inner.modify(fileobj, events, data)

    def close(self) -> None:
        self._inner.close()

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._inner.get_map()


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose `time` starts at 0 s and costs nothing."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Return the virtual seconds since the loop was made."""
        return self._jumping.now_s


def run_virtual(main: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine in virtual time to its end, as `asyncio.run` would in real time.

    Raises `NothingLeftToHappen` when it can never end.
    """
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
