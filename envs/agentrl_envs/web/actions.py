"""Actions of an agent in a browser: tools with a mouse, a keyboard and the browser's own buttons.

An action that cannot be done is a `ToolError`, in words for the model, and changes nothing.
"""

import asyncio
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from agentrl.errors import ConfigError, ToolError
from agentrl.tool import tool
from agentrl_envs.web.browser.context import EpisodeContext
from agentrl_envs.web.browser.page import BrowserPage
from agentrl_envs.web.browser.policy import resolve

Direction = Literal["up", "down", "left", "right"]
Point = tuple[float, float]

_WAIT_MAX_MS = 5000
_TYPED = 64
"""Characters that are typed one by one; more are put in at once."""
_WHOLE = ("date", "time", "month", "week", "datetime-local", "color", "range")
"""Kinds of fields whose parts a keyboard fills in, each in a manner of its own."""
_SCROLL = 0.8
_PASTE = re.compile(r"\+(v|keyv|insert)$", re.IGNORECASE)
"""Keys that paste."""


@dataclass(frozen=True, slots=True)
class ElementBox:
    """Position of an element, and the properties that decide on its actions."""

    x: float
    y: float
    type: str
    editable: bool
    is_list: bool


class BrowserActions:
    """The actions of one episode. Every method is a tool."""

    def __init__(self, visit: EpisodeContext) -> None:
        self._visit = visit

    @property
    def _tab(self) -> BrowserPage:
        return self._visit.tab

    @tool
    async def click(self, id: int) -> None:
        """Click on an element.

        Args:
            id: The number in brackets after the element.
        """
        place = await self._locate(id)
        await _click_mouse(self._tab, place.x, place.y)

    @tool
    async def double_click(self, id: int) -> None:
        """Click twice on an element, quickly.

        Args:
            id: The number in brackets after the element.
        """
        place = await self._locate(id)
        await _click_mouse(self._tab, place.x, place.y, times=2)

    @tool
    async def fill(self, id: int, text: str) -> None:
        """Replace what is in a text field.

        Args:
            id: The number in brackets after the field.
            text: What the field is to hold. A date is YYYY-MM-DD, a time HH:MM.
        """
        place = await self._locate(id, pressed=False)
        if not place.editable:
            raise ToolError(f"[{id}] is not a field that text can be entered into")
        if place.type in _WHOLE:
            if await self._tab.run("put", {"id": id, "value": text}) is False:
                raise ToolError(
                    f"[{id}] does not accept {text!r}: it is a field for a {place.type}"
                )
            return
        await self._tab.run("mark", id)
        keyboard = self._tab.page.keyboard
        if not text:
            await self._tab.call("fill", keyboard.press("Delete"))
        elif len(text) <= _TYPED and text.isprintable():
            await self._tab.call("fill", keyboard.type(text))
        else:
            await self._tab.call("fill", keyboard.insert_text(text))

    @tool
    async def select(self, id: int, option: str) -> None:
        """Choose an option of a list.

        Args:
            id: The number in brackets after the list.
            option: The option, as it is written there.
        """
        place = await self._locate(id, pressed=False)
        if not place.is_list:
            raise ToolError(f"[{id}] is not a list of options; click on it, or on what it shows")
        there = await self._tab.run("choose", {"id": id, "wanted": option})
        if there is not None:
            raise ToolError(f"[{id}] has no option {option!r}; the options are {', '.join(there)}")

    @tool
    async def press(self, key: str) -> None:
        """Press a key, or several together.

        Args:
            key: Such as Enter, Tab, ArrowDown, a or Control+a.
        """
        from playwright.async_api import Error

        async def press_key() -> str:
            try:
                await self._tab.page.keyboard.press(key)
            except Error as error:
                if "Unknown key" in str(error):
                    return f"there is no key {key!r}; examples of keys are Enter, Tab and Control+a"
                raise
            return ""

        if _PASTE.search(key):
            async with self._visit.hold_clipboard() as is_there:
                if not is_there:
                    raise ToolError("nothing can be pasted into a page of this kind")
                refusal = await self._tab.call("press", press_key())
        else:
            refusal = await self._tab.call("press", press_key())
        if refusal:
            raise ToolError(refusal)

    @tool
    async def hover(self, id: int) -> None:
        """Move the mouse over an element.

        Args:
            id: The number in brackets after the element.
        """
        place = await self._locate(id)
        await self._tab.send("Input.dispatchMouseEvent", type="mouseMoved", x=place.x, y=place.y)

    @tool
    async def drag(self, source_id: int, target_id: int) -> None:
        """Drag an element onto another one.

        Args:
            source_id: The number in brackets after the element to drag.
            target_id: The number in brackets after the element to drop it on.
        """
        await self._locate(source_id)
        target = await self._locate(target_id, pressed=False)
        source = await self._locate(source_id)  # looking for the other one may have scrolled it
        await _drag_mouse(self._tab, (source.x, source.y), (target.x, target.y))

    @tool
    async def scroll(self, direction: Direction, id: int | None = None) -> None:
        """Scroll the page, or the box that an element is in.

        Args:
            direction: up, down, left or right.
            id: The number in brackets after the element; leave it out for the page.
        """
        way = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}[direction]
        across, along = (part * _SCROLL for part in way)
        moved = await self._tab.run("roll", {"id": id, "across": across, "along": along})
        if moved is None:
            raise ToolError(_describe_missing(id))
        if not moved:
            raise ToolError(f"it cannot be scrolled any further {direction}")

    @tool
    async def click_at(self, x: float, y: float) -> None:
        """Click at a point of the page as it is seen.

        Args:
            x: Pixels from the left.
            y: Pixels from the top.
        """
        self._check_point(x, y)
        await _click_mouse(self._tab, x, y)

    @tool
    async def drag_at(self, x1: float, y1: float, x2: float, y2: float) -> None:
        """Drag the mouse, pressed, from one point to another.

        Args:
            x1: Pixels from the left, of the start.
            y1: Pixels from the top, of the start.
            x2: Pixels from the left, of the end.
            y2: Pixels from the top, of the end.
        """
        self._check_point(x1, y1)
        self._check_point(x2, y2)
        await _drag_mouse(self._tab, (x1, y1), (x2, y2))

    @tool
    async def goto(self, url: str) -> None:
        """Open an address.

        Args:
            url: The address; one without a host is one of the page's own.
        """
        address = self._resolve(url)
        if why := await self._visit.go(address):
            raise ToolError(f"{address} did not open: {why}")

    @tool
    async def go_back(self) -> None:
        """Go back to the page before."""
        if not await self._visit.go_back():
            raise ToolError("there is no page to go back to")

    @tool
    async def new_tab(self, url: str) -> None:
        """Open an address in a new tab, and go there.

        Args:
            url: The address; one without a host is one of the page's own.
        """
        if why := await self._visit.add_tab(self._resolve(url)):
            raise ToolError(why)

    @tool
    async def switch_tab(self, index: int) -> None:
        """Go to another tab.

        Args:
            index: Its number, from 0.
        """
        count = len(self._visit.tabs)
        if not 0 <= index < count:
            raise ToolError(f"there is no tab {index}; the tabs are 0 to {count - 1}")
        await self._visit.switch(index)

    @tool
    async def close_tab(self) -> None:
        """Close this tab, and go to the one before."""
        if len(self._visit.tabs) == 1:
            raise ToolError("the only tab cannot be closed")
        await self._visit.close_tab()

    @tool
    async def wait(self, milliseconds: int) -> None:
        """Wait for the page.

        Args:
            milliseconds: For how long, at most 5000.
        """
        if not 0 <= milliseconds <= _WAIT_MAX_MS:
            raise ToolError(f"milliseconds must be from 0 to {_WAIT_MAX_MS}, got {milliseconds}")
        await self._visit.wait(milliseconds)

    @tool
    async def answer(self, text: str) -> None:
        """Give the final answer. This ends the task.

        Args:
            text: The answer.
        """

    def _resolve(self, url: str) -> str:
        world = self._visit.world
        origins = () if world is None else world.origins
        address, why = resolve(url, base=self._tab.url, origins=origins)
        if why:
            raise ToolError(why)
        return address

    def _check_point(self, x: float, y: float) -> None:
        screen = self._visit.screen
        if not (0 <= x < screen.width and 0 <= y < screen.height):
            raise ToolError(
                f"({x:g}, {y:g}) is not on the page, which is {screen.width} x {screen.height}"
            )

    async def _locate(self, id: int, *, pressed: bool = True) -> ElementBox:
        location: Mapping[str, Any] | None = await self._tab.run("locate", id)
        if location is None:
            raise ToolError(_describe_missing(id))
        if location["disabled"]:
            raise ToolError(f"[{id}] is disabled")
        if pressed and location["covered"]:
            raise ToolError(
                f"[{id}] cannot be reached: something covers it, or it is not in the visible part "
                "of the page"
            )
        return ElementBox(
            x=location["x"],
            y=location["y"],
            type=location["type"],
            editable=location["editable"],
            is_list=location["options"] is not None,
        )


def _describe_missing(id: int | None) -> str:
    return f"there is no element [{id}] on the page now; use a number from the observation"


ACTIONS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {name: function for name, function in vars(BrowserActions).items() if not name.startswith("_")}
)
"""Every action by name, as it is defined."""


def choose_actions(names: Collection[str] | None) -> tuple[str, ...]:
    """Return the actions an environment offers, all for None. Raises `ConfigError`."""
    if names is None:
        return tuple(ACTIONS)
    if unknown := [name for name in names if name not in ACTIONS]:
        raise ConfigError(f"there are no actions {unknown}; the actions are {', '.join(ACTIONS)}")
    return tuple(name for name in ACTIONS if name in names)


async def _click_mouse(tab: BrowserPage, x: float, y: float, *, times: int = 1) -> None:
    """Click, so many times in a row.

    The events go out without waiting for one another, and happen in order: a page takes the next
    one when it has handled the one before.
    """
    events = [{"type": "mouseMoved"}]
    for count in range(1, times + 1):
        button = {"button": "left", "clickCount": count}
        events += [
            {"type": "mousePressed", "buttons": 1, **button},
            {"type": "mouseReleased", "buttons": 0, **button},
        ]
    await asyncio.gather(
        *(tab.send("Input.dispatchMouseEvent", x=x, y=y, **event) for event in events)
    )


async def _drag_mouse(
    tab: BrowserPage, start: tuple[float, float], end: tuple[float, float]
) -> None:
    mouse = tab.page.mouse
    await tab.call("drag", mouse.move(*start))
    await tab.call("drag", mouse.down())
    await tab.call("drag", mouse.move(*end, steps=8))
    await tab.call("drag", mouse.up())
