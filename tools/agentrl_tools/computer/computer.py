"""One tool for a screen, a mouse and a keyboard, in the vocabulary of computer-use models."""

import asyncio
from typing import Literal, Protocol

from agentrl.errors import ToolError
from agentrl.tool import tool
from agentrl_tools.computer.grid import PointGrid

Button = Literal["left", "middle", "right"]
Direction = Literal["up", "down", "left", "right"]
Verb = Literal[
    "click",
    "double_click",
    "triple_click",
    "right_click",
    "middle_click",
    "move",
    "drag",
    "scroll",
    "type",
    "key",
    "wait",
    "screenshot",
    "done",
    "fail",
]

TYPED_MAX = 2000
WAIT_MAX_S = 10.0
SCROLL_MAX = 50
_CLICKS: dict[str, tuple[Button, int]] = {
    "click": ("left", 1),
    "double_click": ("left", 2),
    "triple_click": ("left", 3),
    "right_click": ("right", 1),
    "middle_click": ("middle", 1),
}
LAST = ("done", "fail")
"""The verbs that end a task."""


class ComputerMachine(Protocol):
    """Mouse, keyboard and screen. Points are its pixels. Impossible actions raise `ToolError`."""

    async def place(self, element: int) -> tuple[int, int]:
        """Return the point to click on an element."""
        ...

    async def pointer(self) -> tuple[int, int]:
        """Return the position of the mouse."""
        ...

    async def move(self, x: int, y: int) -> None:
        """Move the mouse."""
        ...

    async def click(self, x: int, y: int, button: Button, times: int, keys: list[str]) -> None:
        """Click, with keys held down."""
        ...

    async def drag(self, x1: int, y1: int, x2: int, y2: int) -> None:
        """Move the mouse with the left button pressed."""
        ...

    async def scroll(self, x: int, y: int, direction: Direction, amount: int) -> None:
        """Turn the wheel by so many notches."""
        ...

    async def type(self, text: str) -> None:
        """Type a text."""
        ...

    async def press(self, keys: list[str]) -> None:
        """Press keys together."""
        ...


class Computer:
    """The tool of one episode."""

    def __init__(self, machine: ComputerMachine, grid: PointGrid) -> None:
        self._machine = machine
        self._grid = grid

    @tool
    async def computer(
        self,
        action: Verb,
        coordinate: list[float] | None = None,
        element: int | None = None,
        to_coordinate: list[float] | None = None,
        to_element: int | None = None,
        text: str | None = None,
        keys: str | None = None,
        direction: Direction = "down",
        amount: int = 3,
        seconds: float = 1.0,
    ) -> None:
        """Use the mouse and the keyboard of a computer, and see its screen afterwards.

        Args:
            action: What to do. done ends the task, with the answer in text if one was asked for.
                fail ends it as one that cannot be done.
            coordinate: [x, y] on the screen, for clicks, move, drag and scroll.
            element: Instead of a coordinate, the number in brackets after an element.
            to_coordinate: Where a drag ends, as [x, y].
            to_element: Instead, the element on which a drag ends.
            text: What to type; or the answer.
            keys: Keys to press together, such as Return or ctrl+s; or held down in a click.
            direction: Where to scroll: up, down, left or right.
            amount: How many notches to scroll.
            seconds: How long to wait, at most 10.
        """
        machine = self._machine
        if action in LAST or action == "screenshot":
            return
        if action == "wait":
            if not 0 <= seconds <= WAIT_MAX_S:
                raise ToolError(f"seconds must be from 0 to {WAIT_MAX_S:g}, got {seconds:g}")
            await asyncio.sleep(seconds)
        elif action == "type":
            await machine.type(_check_typed(text))
        elif action == "key":
            await machine.press(_parse_keys(keys, action))
        elif action in _CLICKS:
            at = await self._find_point(action, coordinate, element)
            button, times = _CLICKS[action]
            await machine.click(*at, button, times, _parse_keys(keys, action) if keys else [])
        elif action == "move":
            await machine.move(*await self._find_point(action, coordinate, element))
        elif action == "drag":
            start = await self._find_point(action, coordinate, element)
            end = await self._find_point("the end of a drag", to_coordinate, to_element, "to_")
            await machine.drag(*start, *end)
        else:
            if not 1 <= amount <= SCROLL_MAX:
                raise ToolError(f"amount must be from 1 to {SCROLL_MAX}, got {amount}")
            at = await machine.pointer()
            if coordinate is not None or element is not None:
                at = await self._find_point(action, coordinate, element)
            await machine.scroll(*at, direction, amount)

    async def _find_point(
        self, what: str, coordinate: list[float] | None, element: int | None, of: str = ""
    ) -> tuple[int, int]:
        if (coordinate is None) == (element is None):
            raise ToolError(f"{what} needs either {of}coordinate or {of}element, but not both")
        if coordinate is not None:
            return self._grid.pixel(coordinate)
        assert element is not None
        return await self._machine.place(element)


def _check_typed(text: str | None) -> str:
    if not text:
        raise ToolError("type needs text, the characters to type")
    if len(text) > TYPED_MAX:
        raise ToolError(
            f"{len(text)} characters are too many to type at once; the limit is {TYPED_MAX}"
        )
    return text


def _parse_keys(keys: str | None, what: str) -> list[str]:
    if not keys:
        raise ToolError(f"{what} needs keys, such as Return or ctrl+s")
    if keys == "+":
        return ["+"]
    combination = keys.removesuffix("++") if keys.endswith("++") else keys
    parts = [part.strip() for part in combination.split("+")]
    if not all(parts):
        raise ToolError(f"{keys!r} names no keys; join keys with +, such as ctrl+s")
    return [*parts, "+"] if keys.endswith("++") else parts
