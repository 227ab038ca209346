"""Common moves of players. A player sees what the agent sees."""

from collections.abc import Generator

from agentrl.env import Action, call
from agentrl_envs.accessibility.reading import ObservedPage

Moves = Generator[Action, ObservedPage, ObservedPage]
"""A part of a script; returns the page it ends on."""


def click(page: ObservedPage, role: str, name: str, *, verb: str = "click") -> Action:
    """Return the action of clicking on the first element of this role and name."""
    return call("computer", action=verb, element=page.id(role, name))


def type_text(text: str) -> Action:
    """Return the action of typing a text where the keyboard is."""
    return call("computer", action="type", text=text)


def press(keys: str) -> Action:
    """Return the action of pressing keys together."""
    return call("computer", action="key", keys=keys)


def finish(text: str = "") -> Action:
    """Return the action of ending the task, with an answer if there is one."""
    return call("computer", action="done", **({"text": text} if text else {}))
