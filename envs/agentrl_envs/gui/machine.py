"""The hands of one episode: what the tool of a computer asks for, done on a desktop."""

from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.errors import ToolError
from agentrl_envs.gui.desktop import DesktopSession
from agentrl_envs.gui.observation import ElementNumbers
from agentrl_tools.computer.computer import Button, Direction

_PARTS = 8
"""A covered element is tried at this many points less one, both ways."""


class DesktopMachine:
    """A desktop as an `agentrl_tools.computer.ComputerMachine`."""

    def __init__(self, desktop: DesktopSession, numbers: ElementNumbers) -> None:
        self._desktop = desktop
        self._numbers = numbers

    async def place(self, element: int) -> tuple[int, int]:
        """Return the middle of what is seen of an element.

        `ToolError` where it is gone, off the screen, or all behind another program's window.
        """
        reference = self._numbers.reference(element)
        if reference is None:
            raise ToolError(f"there is no element [{element}]; use a number from the observation")
        location = (await self._desktop.ask("locate", reference=list(reference))).body
        if "box" not in location:
            raise ToolError(f"[{element}] is no longer visible")
        settings = self._desktop.settings
        spots = list_points(location["box"], settings.width, settings.height)
        if not spots:
            raise ToolError(f"[{element}] is off the screen; scroll, or move its window")
        covers = [_find_cover(reference, location, *spot) for spot in spots]
        if None not in covers:
            raise ToolError(f"[{element}] is behind the window {covers[0]!r}")
        return spots[covers.index(None)]

    async def pointer(self) -> tuple[int, int]:
        x, y = (await self._desktop.ask("pointer")).body["at"]
        return x, y

    async def move(self, x: int, y: int) -> None:
        await self._desktop.ask("move", x=x, y=y)

    async def click(self, x: int, y: int, button: Button, times: int, keys: list[str]) -> None:
        await self._desktop.ask("click", x=x, y=y, button=button, times=times, keys=keys)

    async def drag(self, x1: int, y1: int, x2: int, y2: int) -> None:
        await self._desktop.ask("drag", x1=x1, y1=y1, x2=x2, y2=y2)

    async def scroll(self, x: int, y: int, direction: Direction, amount: int) -> None:
        await self._desktop.ask("scroll", x=x, y=y, direction=direction, amount=amount)

    async def type(self, text: str) -> None:
        await self._desktop.ask("type", text=text)

    async def press(self, keys: list[str]) -> None:
        await self._desktop.ask("press", keys=keys)


def list_points(box: Sequence[int], width: int, height: int) -> list[tuple[int, int]]:
    """Return points of the part of a box that is on a screen, its middle first; none if none is."""
    left_x, top, wide, high = box
    x1, x2 = max(0, left_x), min(width, left_x + wide)
    y1, y2 = max(0, top), min(height, top + high)
    if x2 <= x1 or y2 <= y1:
        return []
    parts = (4, *(part for part in range(1, _PARTS) if part != 4))
    return [
        (x1 + (x2 - x1 - 1) * across // _PARTS, y1 + (y2 - y1 - 1) * down // _PARTS)
        for down in parts
        for across in parts
    ]


def _find_cover(reference: tuple[str, str], found: Mapping[str, Any], x: int, y: int) -> str | None:
    """Return the title of a window of another program over a point, if one is there."""
    over = [
        window
        for window in found["windows"]
        if 0 <= x - window["x"] < window["width"] and 0 <= y - window["y"] < window["height"]
    ]
    if not over:
        return None
    top = over[-1]
    mine = str(top["id"]) == reference[1] if not reference[0] else top["pid"] == found["pid"]
    # What has no program to its name is part of the desktop: a menu, a frame.
    return None if mine or not top["pid"] else top["title"]
