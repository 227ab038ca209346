"""The mouse, in pixels of the viewport."""

import asyncio

from agentrl_envs.web.browser.page import BrowserPage

_DRAG_STEPS = 8


async def move(tab: BrowserPage, x: float, y: float) -> None:
    """Move the mouse somewhere."""
    await tab.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)


async def press(tab: BrowserPage, x: float, y: float, *, times: int = 1) -> None:
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


async def drag(tab: BrowserPage, start: tuple[float, float], end: tuple[float, float]) -> None:
    """Press at one point, move to another, and let go."""
    mouse = tab.page.mouse
    await tab.call("drag", mouse.move(*start))
    await tab.call("drag", mouse.down())
    await tab.call("drag", mouse.move(*end, steps=_DRAG_STEPS))
    await tab.call("drag", mouse.up())
