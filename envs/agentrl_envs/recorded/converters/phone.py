"""The tool of agents that use a phone, as AndroidControl's actions are recorded."""

from collections.abc import Mapping
from typing import Any

from agentrl_envs.recorded.converters.converted import (
    UnusableTrajectory,
    require_number,
    require_type,
)

NAME = "phone"
_KINDS = {
    "click": "click",
    "long_press": "long_press",
    "scroll": "scroll",
    "input_text": "type",
    "open_app": "open_app",
    "navigate_back": "back",
    "navigate_home": "home",
    "wait": "wait",
}
"""Of AndroidControl, and how they are recorded."""


def _argument(kind: str, about: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "description": about, **more}


_ARGUMENTS = {
    "action": _argument("string", "What to do.", enum=[*_KINDS.values(), "done"]),
    "coordinate": _argument("array", "[x, y] on the screen.", items={"type": "number"}),
    "element": _argument("integer", "Instead, the number in brackets after an element."),
    "text": _argument("string", "What to type; or the answer."),
    "direction": _argument("string", "To scroll.", enum=["up", "down", "left", "right"]),
    "app": _argument("string", "The name of the app to open."),
}
SCHEMA: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": NAME,
        "description": "Use a phone by its touch screen, and see it afterwards. done ends it.",
        "parameters": {"type": "object", "properties": _ARGUMENTS, "required": ["action"]},
    },
}


def call_of(action: Mapping[str, Any]) -> dict[str, Any]:
    """Return an action of AndroidControl as arguments; may raise `UnusableTrajectory`."""
    kind = str(action.get("action_type", ""))
    if kind not in _KINDS:
        raise UnusableTrajectory(
            f"there is no action {kind!r:.80}; the actions are {', '.join(_KINDS)}"
        )
    call: dict[str, Any] = {"action": _KINDS[kind]}
    try:
        match kind:
            case "click" | "long_press":
                call["coordinate"] = [require_number(action[side], side) for side in ("x", "y")]
            case "scroll":
                call["direction"] = require_type(action["direction"], str, "direction")
            case "input_text":
                call["text"] = require_type(action["text"], str, "text")
            case "open_app":
                call["app"] = require_type(action["app_name"], str, "app_name")
            case _:
                pass
    except KeyError as error:
        raise UnusableTrajectory(f"an action {kind} has no {error}") from error
    return call
