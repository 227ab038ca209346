"""Scene that a player of MiniWoB++ sees: the conversation, read as pages and calls."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from agentrl.env import Action, call, say
from agentrl.message import Message, ToolCall
from agentrl_envs.web.observation import AccessibilityNode, ObservedPage, read

ORDINALS: Final = {"1st": 0, "2nd": 1, "3rd": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayerConversation:
    """A conversation so far."""

    goal: str
    first: ObservedPage
    page: ObservedPage
    """The newest one that was shown."""
    calls: tuple[ToolCall, ...]

    def find_calls(self, tool: str) -> tuple[ToolCall, ...]:
        """Return the calls of one tool so far."""
        return tuple(one for one in self.calls if one.name == tool)

    def count_clicks(self, id_: int | None) -> int:
        """Return the number of clicks on an element."""
        return sum(one.arguments["id"] == id_ for one in self.find_calls("click"))

    @property
    def quoted(self) -> list[str]:
        """Texts in quotation marks in the goal."""
        return re.findall(r'"(.*?)"', self.goal)


Player = Callable[[PlayerConversation], Action]
PLAYERS: Final = dict[str, Player]()
"""Players by family."""


def plays(*families: str) -> Callable[[Player], Player]:
    """Enter a function that says the next action into `PLAYERS`."""

    def enter(player: Player) -> Player:
        PLAYERS.update(dict.fromkeys(families, player))
        return player

    return enter


def plans(*families: str) -> Callable[[Callable[[PlayerConversation], Sequence[Action]]], Player]:
    """Enter a function that says all actions, from what can be seen at the opening."""

    def enter(plan: Callable[[PlayerConversation], Sequence[Action]]) -> Player:
        def play(scene: PlayerConversation) -> Action:
            actions = plan(scene)
            return actions[len(scene.calls)] if len(scene.calls) < len(actions) else say("done")

        return plays(*families)(play)

    return enter


def scene_of(seen: Sequence[Message]) -> PlayerConversation:
    """Read a conversation that begins with a goal and a page."""
    observations = [message.text for message in seen if message.role in ("user", "tool")]
    pages = [
        text for text in observations if "\nurl: " in text or text.startswith(("url: ", "notice: "))
    ]
    first = read(pages[0])
    return PlayerConversation(
        goal=first.goal,
        first=first,
        page=read(pages[-1]),
        calls=tuple(one for message in seen for one in message.tool_calls),
    )


def click(target: AccessibilityNode) -> Action:
    """Click on an element."""
    return call("click", id=_id(target))


def fill(target: AccessibilityNode, text: str) -> Action:
    """Type into a field."""
    return call("fill", id=_id(target), text=text)


def press(key: str) -> Action:
    """Press a key."""
    return call("press", key=key)


def drag_at(start: tuple[float, float], end: tuple[float, float]) -> Action:
    """Drag from one point to another."""
    return call("drag_at", x1=start[0], y1=start[1], x2=end[0], y2=end[1])


def submit(page: ObservedPage, name: str = "Submit") -> Action:
    """Click on a button."""
    return click(page.find("button", name))


def texts(page: ObservedPage) -> list[str]:
    """Return the static texts of a page."""
    return [node.name for node in page.all("text")]


def fields(page: ObservedPage) -> tuple[AccessibilityNode, ...]:
    """Return the text fields of a page."""
    return page.all("textbox")


def search(pattern: str, text: str) -> tuple[str, ...]:
    """Return the groups of a pattern in a text; raises `LookupError` where it is not there."""
    match = re.search(pattern, text)
    if match is None:
        raise LookupError(f"{pattern!r} is not in {text!r}")
    return match.groups()


def _id(target: AccessibilityNode) -> int:
    if target.id is None:
        raise LookupError(f"there is nothing to act on in {target}")
    return target.id
