"""Episodes of AndroidControl (Li et al. 2024, arXiv 2406.03679), in their JSON form.

An episode is an object with `episode_id`, `goal`, `actions` (objects, or JSON texts of them),
`screenshots` (paths from the file's folder, one more than actions), and, where there are any,
`accessibility_trees`, `step_instructions`, `screenshot_widths` and `screenshot_heights`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any, Literal, cast, get_args

from agentrl.env import Box
from agentrl.errors import ConfigError
from agentrl.learn.recording import ConversationRecording, RecordedContent, RecordedMessage
from agentrl_envs.accessibility.node import AccessibilityNode
from agentrl_envs.recorded.converters.converted import (
    ConversionResult,
    UnusableTrajectory,
    ask_task,
    content_of,
    convert_trajectory,
    make_answers,
    make_turn,
    read_object,
    require_files,
    require_number,
    require_type,
)
from agentrl_envs.recorded.converters.phone import NAME, SCHEMA, call_of
from agentrl_envs.recorded.pointing import smallest_box

Shown = Literal["axtree", "screenshot", "both"]
_FLAGS = ("checked", "selected", "focused")
_ROLE = re.compile(r"[a-z][\w-]*")
"""Of an element's line. Another class could write lines of its own."""
_SNAKE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@dataclass(frozen=True, slots=True)
class _Screen:
    """Screen before an action, or after the last one."""

    text: str
    places: Mapping[int, Box]
    content: RecordedContent


def android_control(source: Path, *, shown: Shown = "both") -> Iterator[ConversionResult]:
    """Yield the episodes of a JSON lines file, or of a folder of JSON and JSON lines files.

    Where a tree is shown, what was clicked is named by its number. The last turn says `done`, which
    AndroidControl leaves out. Raises `ConfigError` where there is no such file.
    """
    if shown not in get_args(Shown):
        raise ConfigError(f"shown must be one of {', '.join(get_args(Shown))}, got {shown!r}")
    paths = [source] if source.is_file() else sorted(source.rglob("*.json*"))
    files = [path for path in paths if path.is_file()]
    for file in require_files(files, source, "no JSON or JSON lines file"):
        yield from _convert_file(file, shown)


def _convert_file(file: Path, shown: Shown) -> Iterator[ConversionResult]:
    if file.suffix == ".json":
        yield convert_trajectory(
            str(file), lambda: _recording(file.read_bytes(), file.parent, shown)
        )
        return
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                record = partial(_recording, line, file.parent, shown)
                yield convert_trajectory(f"{file}, line {number}", record)


def _recording(text: bytes, folder: Path, shown: Shown) -> ConversationRecording:
    episode = read_object(text, "the episode")
    goal = require_type(episode.get("goal"), str, "the goal")
    actions = [
        read_object(action, "an action")
        if isinstance(action, str)
        else require_type(action, dict, "an action")
        for action in require_type(episode.get("actions"), list, "actions")
    ]
    instructions = _find_list(episode, "step_instructions") or [""] * len(actions)
    screens = [_screen(episode, step, folder, shown) for step in range(len(actions) + 1)]
    if len(instructions) != len(actions):
        raise UnusableTrajectory(
            f"there are {len(actions)} actions but {len(instructions)} step instructions"
        )
    head = f"Goal: {' '.join(goal.split())}\n"
    messages: list[RecordedMessage] = [ask_task(_prepend(head, screens[0].content))]
    for step, (action, instruction) in enumerate(zip(actions, instructions, strict=True)):
        call, before = call_of(action), screens[step]
        if shown != "screenshot":
            call = _name_element(call, before.places)
        messages.append(make_turn(NAME, [call], instruction=instruction, places=before.places))
        messages += make_answers(NAME, 1, screens[step + 1].content)
    messages.append(make_turn(NAME, [{"action": "done"}], places=screens[-1].places))
    return ConversationRecording(
        messages=tuple(messages),
        tools=(SCHEMA,),
        reward=1.0,
        task=str(episode.get("episode_id", "")),
        player="android_control",
    )


def _prepend(head: str, content: RecordedContent) -> RecordedContent:
    if isinstance(content, str):
        return head + content
    first, *rest = content
    return (f"{head}{first}", *rest)


def _screen(episode: Mapping[str, Any], step: int, folder: Path, shown: Shown) -> _Screen:
    trees, pictures = (_find_list(episode, n) for n in ("accessibility_trees", "screenshots"))
    if shown != "axtree" and not pictures:
        raise UnusableTrajectory("it has no screenshots; convert with --shown axtree")
    if shown != "screenshot" and not trees:
        raise UnusableTrajectory("it has no accessibility trees; convert with --shown screenshot")
    lines, places = _tree(_find_step(trees, step, "accessibility_trees")) if trees else ("", {})
    sides = [_find_list(episode, f"screenshot_{side}") for side in ("widths", "heights")]
    size = " x ".join(_side(_find_step(side, step, "sizes")) for side in sides if side)
    text = f"screen: {size}\n" if size else ""
    if shown != "screenshot":
        text += lines
    picture = None
    if shown != "axtree":
        name = _find_step(pictures, step, "screenshots")
        picture = folder / require_type(name, str, "a screenshot")
    return _Screen(text, places, content_of(text.rstrip("\n"), picture))


def _side(pixels: Any) -> str:
    if require_number(pixels, "a side of the screen") <= 0:
        raise UnusableTrajectory(f"a side of the screen is {pixels}, but must be above 0")
    return str(pixels)


def _find_list(episode: Mapping[str, Any], name: str) -> list[Any]:
    """Return a list of an episode, which may be missing or null."""
    return require_type(episode.get(name) or [], list, name)


def _find_step(found: Sequence[Any], step: int, what: str) -> Any:
    if step >= len(found):
        raise UnusableTrajectory(f"there are {len(found)} {what}, but step {step} needs one")
    return found[step]


def _tree(tree: Any) -> tuple[str, dict[int, Box]]:
    """Return the elements that can be seen as lines with numbers, and where they are."""
    lines: list[str] = []
    places: dict[int, Box] = {}
    for node in map(_snake, _nodes(tree)):
        box = _box(node)
        label = " ".join(str(node.get("text") or node.get("content_description") or "").split())
        can = [name for name in ("clickable", "editable") if _is(node, name)]
        if box is None or not (label or can) or node.get("is_visible_to_user", True) is False:
            continue
        number = len(places) + 1
        places[number] = box
        role = str(node.get("class_name")).rpartition(".")[2].lower()
        role = role if node.get("class_name") and _ROLE.fullmatch(role) else "view"
        flags = {flag: "" for flag in _FLAGS if _is(node, flag)}
        lines.append(AccessibilityNode(role=role, name=label, id=number, attributes=flags).line)
    return "\n".join(lines), places


def _nodes(tree: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the nodes of a forest as the protocol buffers have it, or of a plain list."""
    if isinstance(tree, Mapping):
        forest = cast("Mapping[str, Any]", tree)
        nodes: list[Any] = []
        for each in _find_list(forest, "windows") or [forest]:
            window = require_type(each, dict, "a window")
            inside = require_type(window.get("tree", window), dict, "the tree of a window")
            nodes += _find_list(inside, "nodes")
    else:
        nodes = require_type(tree, list, "an accessibility tree")
    for node in nodes:
        yield require_type(node, dict, "a node")


def _snake(node: Mapping[str, Any]) -> dict[str, Any]:
    return {_SNAKE.sub("_", name).lower(): value for name, value in node.items()}


def _is(node: Mapping[str, Any], flag: str) -> bool:
    return node.get(f"is_{flag}", node.get(flag)) is True


def _box(node: Mapping[str, Any]) -> Box | None:
    """Return left, top, width and height; None unless they are a rectangle of finite numbers."""
    bounds: Any = node.get("bounds_in_screen") or node.get("bounds") or node.get("bbox")
    if isinstance(bounds, dict):
        sides = cast("dict[str, Any]", bounds)
        bounds = [sides.get(side, 0) for side in ("left", "top", "right", "bottom")]
    try:
        left_x, top, right, bottom = map(float, require_type(bounds, list, "a box"))
    except (OverflowError, TypeError, ValueError):
        return None
    box = (left_x, top, right - left_x, bottom - top)
    return box if all(map(isfinite, box)) and box[2] > 0 and box[3] > 0 else None


def _name_element(call: dict[str, Any], places: Mapping[int, Box]) -> dict[str, Any]:
    """Return a call with the number of the smallest element that it points at, if there is one."""
    if "coordinate" not in call:
        return call
    x, y = call["coordinate"]
    box = smallest_box((x, y), places)
    if box is None:
        return call
    number = next(number for number, other in reversed([*places.items()]) if other == box)
    return {name: value for name, value in call.items() if name != "coordinate"} | {
        "element": number
    }
