"""Common moves of players. A player sees what the agent sees."""

from collections.abc import Generator

from agentrl.env import Action, call
from agentrl_envs.accessibility.reading import ObservedPage

Moves = Generator[Action, ObservedPage, ObservedPage]
"""A part of a script; returns the page it ends on."""


def click(page: ObservedPage, role: str, name: str, *, verb: str = "click") -> Action:
    """Return the action of clicking on the first element of this role and name."""
    return call("computer", action=verb, element=page.id(role, name))


def open_menu(page: ObservedPage, name: str) -> Action:
    """Return the action of opening a menu of the menu bar."""
    return click(page, "menu", name)


def typed(text: str) -> Action:
    """Return the action of typing a text where the keyboard is."""
    return call("computer", action="type", text=text)


def key(keys: str) -> Action:
    """Return the action of pressing keys together."""
    return call("computer", action="key", keys=keys)


def done(text: str = "") -> Action:
    """Return the action of ending the task, with an answer if there is one."""
    return call("computer", action="done", **({"text": text} if text else {}))


def fail() -> Action:
    """Return the action of saying that it cannot be done."""
    return call("computer", action="fail")
