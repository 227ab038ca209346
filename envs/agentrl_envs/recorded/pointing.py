"""Whether two actions on a screen do the same: points by the elements they hit. Pure.

What counts as the same follows the evaluation of AndroidControl (Li et al. 2024, arXiv 2406.03679)
and of UI-S1 (arXiv 2509.11543): the same kind of action, a point within the element that was meant
or near the point that was meant, the same text, the same direction.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agentrl.env import Box

VERB = "action"
"""The argument that says what is done, in tools for screens."""
_POINTS = {"": ("coordinate", "element"), "to_": ("to_coordinate", "to_element")}
_POINTING = {
    *("click", "double_click", "triple_click", "right_click", "middle_click", "move"),
    *("long_press", "drag"),
}
_SIMPLE = {"wait", "screenshot", "fail"}
_PLAIN = {"back", "home", "open_app"}
"""All of their arguments are compared."""
VERBS = _POINTING | _SIMPLE | _PLAIN | {"scroll", "type", "key", "done"}
"""Verbs of actions on screens."""
_KEYS = {
    "control": "ctrl", "control_l": "ctrl", "control_r": "ctrl", "alt_l": "alt", "shift_l": "shift",
    "super_l": "super", "meta": "super", "cmd": "super", "command": "super", "win": "super",
    "option": "alt", "enter": "return", "esc": "escape", "del": "delete", "prior": "pageup",
    "page_up": "pageup", "next": "pagedown", "page_down": "pagedown", "arrowup": "up",
    "arrowdown": "down", "arrowleft": "left", "arrowright": "right",
}  # fmt: skip

Arguments = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PointedScreen:
    """Basis for the comparison of two actions."""

    places: Mapping[int, Box]
    """Boxes of the elements, by their numbers."""
    radius: float
    """Points that hit no element are the same within it, in units of coordinates."""
    same: Callable[[Any, Any], bool]
    """Comparison of texts, and of everything that is not of a screen."""


def verb_of(arguments: Arguments) -> str | None:
    """Return the verb of a call on a screen; None for a call that does something else."""
    verb = arguments.get(VERB)
    return verb if isinstance(verb, str) and verb in VERBS else None


def is_same_gesture(said: Arguments, expert: Arguments, screen: PointedScreen) -> bool:
    """Return whether a call does what the expert's does, whose `action` is one of `VERBS`.

    Where to scroll is not compared, nor how far; nor how long to wait. Keys are the same in any
    order and by any of their usual names. The text of `done` counts where the expert gave one.
    """
    verb = verb_of(expert)
    if said.get(VERB) != verb:
        return False
    match verb:
        case "type":
            return screen.same(said.get("text"), expert.get("text"))
        case "key":
            return _keys(said) == _keys(expert)
        case "scroll":
            return said.get("direction", "down") == expert.get("direction", "down")
        case "done":
            answer = expert.get("text")
            return not answer or screen.same(said.get("text"), answer)
        case str() if verb in _SIMPLE:
            return True
        case str() if verb in _PLAIN:
            return screen.same(said, expert)
        case _:
            ends = ("", "to_") if verb == "drag" else ("",)
            return _keys(said) == _keys(expert) and all(
                _is_same_point(said, expert, end, screen) for end in ends
            )


def smallest_box(point: tuple[float, float], places: Mapping[int, Box]) -> Box | None:
    """Return the box of the smallest element that a point is in; the later one of two."""
    inside = [box for box in places.values() if _is_within(point, box)]
    return min(reversed(inside), key=lambda box: box[2] * box[3], default=None)


def _is_same_point(said: Arguments, expert: Arguments, end: str, screen: PointedScreen) -> bool:
    coordinate, element = _POINTS[end]
    element_id, meant = said.get(element), expert.get(element)
    if meant is not None and element_id == meant and said.get(coordinate) is None:
        return True
    mine, yours = _point(said, end, screen), _point(expert, end, screen)
    if mine is None or yours is None:
        return False
    box = screen.places.get(meant) if isinstance(meant, int) else None
    box = box or smallest_box(yours, screen.places)
    if box is not None and _is_within(mine, box):
        # An element within the one that was meant is another one.
        return element_id is None or meant is None or smallest_box(mine, screen.places) == box
    return box is None and math.dist(mine, yours) <= screen.radius


def _point(arguments: Arguments, end: str, screen: PointedScreen) -> tuple[float, float] | None:
    """Return the point of a call: a coordinate, or the middle of an element; None for nowhere."""
    coordinate, element = (arguments.get(name) for name in _POINTS[end])
    if (coordinate is None) == (element is None):
        return None
    if coordinate is None:
        box = screen.places.get(element) if isinstance(element, int) else None
        return None if box is None else (box[0] + box[2] / 2, box[1] + box[3] / 2)
    try:
        x, y = map(float, coordinate)
    except (TypeError, ValueError):
        return None
    return x, y


def _is_within(point: tuple[float, float], box: Box) -> bool:
    left_x, top, wide, high = box
    return 0 <= point[0] - left_x < wide and 0 <= point[1] - top < high


def _keys(arguments: Arguments) -> frozenset[str]:
    combination = str(arguments.get("keys") or "").casefold()
    plus = {"+"} if combination == "+" or combination.endswith("++") else set[str]()
    parts = {part.strip() for part in combination.split("+")} - {""}
    return frozenset({_KEYS.get(part, part) for part in parts} | plus)
