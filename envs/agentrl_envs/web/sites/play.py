"""A player written as a script: it yields an action and is given the page that comes of it."""

from collections.abc import Callable, Generator, Sequence
from typing import Any

from agentrl.env import Action, call
from agentrl.message import Message
from agentrl.task import Task
from agentrl_envs.accessibility.reading import ObservedPage, read

Script = Generator[Action, ObservedPage, None]
"""Yields actions; what is sent into it is the page as it was then shown."""
Moves = Generator[Action, ObservedPage, ObservedPage]
"""A part of a script; returns the page it ends on."""
Player = Callable[[ObservedPage, dict[str, Any]], Script]
"""Begins a script on the page of the opening message, and what the task wants."""


def next_action(player: Player, task: Task, seen: Sequence[Message]) -> Action:
    """Return the next action of a player after these messages: a pure function of all three.

    The script is played again from its beginning. Raises `LookupError` where the page is not what
    the script expects, or where it has ended.
    """
    observations = _observations(seen)
    script = player(read(observations[0]), task.data["wanted"])
    try:
        action = next(script)
        for text in observations[1:]:
            action = script.send(read(text))
    except StopIteration:
        raise LookupError(
            f"the player of {task.id!r} has ended but the episode continues"
        ) from None
    return action


def _observations(seen: Sequence[Message]) -> list[str]:
    observations = [""]
    for message in seen:
        if message.role == "assistant":
            observations.append("")
        elif message.role in ("user", "tool"):
            observations[-1] = message.text
    return observations


def click(page: ObservedPage, role: str, name: str) -> Action:
    """Return the action of clicking on the first element of this role and name."""
    return call("click", id=page.id(role, name))


def fill(page: ObservedPage, name: str, text: str) -> Action:
    """Return the action of filling in the text box of this name."""
    return call("fill", id=page.id("textbox", name), text=text)


def select(page: ObservedPage, name: str, option: str) -> Action:
    """Return the action of choosing an option of the list of this name."""
    return call("select", id=page.id("combobox", name), option=option)


def answer(text: str) -> Action:
    """Return the action of giving the final answer."""
    return call("answer", text=text)
