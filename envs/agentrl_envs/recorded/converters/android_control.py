"""Episodes of AndroidControl (Li et al. 2024, arXiv 2406.03679), in their JSON form.

An episode is an object with `episode_id`, `goal`, `actions` (objects, or JSON texts of them),
`screenshots` (paths from the file's folder, one more than actions), and, where there are any,
`accessibility_trees`, `step_instructions`, `screenshot_widths` and `screenshot_heights`.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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
    make_answers,
    make_turn,
    require_files,
)
from agentrl_envs.recorded.converters.phone import NAME, SCHEMA, call_of
from agentrl_envs.recorded.pointing import smallest_box

Shown = Literal["axtree", "screenshot", "both"]
_FLAGS = ("checked", "selected", "focused")
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
    files = [source] if source.is_file() else sorted(source.rglob("*.json*"))
    for file in require_files(files, source, "no JSON or JSON lines file"):
        for number, episode in enumerate(_episodes(file), start=1):
            name = f"{file}, episode {episode.get('episode_id', number)}"
            try:
                yield ConversionResult(name, _recording(episode, file.parent, shown))
            except (UnusableTrajectory, KeyError, TypeError, ValueError) as error:
                why = str(error) if isinstance(error, UnusableTrajectory) else repr(error)
                yield ConversionResult(name, why)


def _episodes(file: Path) -> Iterator[Mapping[str, Any]]:
    if file.suffix == ".json":
        yield json.loads(file.read_text(encoding="utf-8"))
        return
    with file.open(encoding="utf-8") as lines:
        yield from (json.loads(line) for line in lines if line.strip())


def _recording(episode: Mapping[str, Any], folder: Path, shown: Shown) -> ConversationRecording:
    actions = [json.loads(a) if isinstance(a, str) else a for a in episode["actions"]]
    instructions = episode.get("step_instructions") or [""] * len(actions)
    screens = [_screen(episode, step, folder, shown) for step in range(len(actions) + 1)]
    if len(instructions) != len(actions):
        raise UnusableTrajectory(
            f"there are {len(actions)} actions but {len(instructions)} step instructions"
        )
    goal = f"Goal: {' '.join(str(episode['goal']).split())}\n"
    messages: list[RecordedMessage] = [ask_task(_prepend(goal, screens[0].content))]
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
    trees, pictures = episode.get("accessibility_trees"), episode.get("screenshots")
    if shown != "axtree" and not pictures:
        raise UnusableTrajectory("it has no screenshots; convert with --shown axtree")
    if shown != "screenshot" and not trees:
        raise UnusableTrajectory("it has no accessibility trees; convert with --shown screenshot")
    lines, places = _tree(_find_step(trees, step, "accessibility_trees")) if trees else ("", {})
    sizes = [episode.get(f"screenshot_{side}") for side in ("widths", "heights")]
    size = " x ".join(str(_find_step(side, step, "sizes")) for side in sizes if side)
    text = f"screen: {size}\n" if size else ""
    if shown != "screenshot":
        text += lines
    picture = None
    if shown != "axtree":
        picture = folder / str(_find_step(pictures or (), step, "screenshots"))
    return _Screen(text, places, content_of(text.rstrip("\n"), picture))


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
        role = str(node.get("class_name") or "view").rpartition(".")[2].lower()
        flags = {flag: "" for flag in _FLAGS if _is(node, flag)}
        lines.append(AccessibilityNode(role=role, name=label, id=number, attributes=flags).line)
    return "\n".join(lines), places


def _nodes(tree: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the nodes of a forest as the protocol buffers have it, or of a plain list."""
    if isinstance(tree, Mapping):
        forest = cast("Mapping[str, Any]", tree)
        for window in forest.get("windows") or [forest]:
            inside = window.get("tree", window)
            yield from inside.get("nodes") or []
    else:
        yield from tree


def _snake(node: Mapping[str, Any]) -> dict[str, Any]:
    return {_SNAKE.sub("_", name).lower(): value for name, value in node.items()}


def _is(node: Mapping[str, Any], flag: str) -> bool:
    return node.get(f"is_{flag}", node.get(flag)) is True


def _box(node: Mapping[str, Any]) -> Box | None:
    bounds = node.get("bounds_in_screen") or node.get("bounds") or node.get("bbox")
    if isinstance(bounds, Mapping):
        sides = cast("Mapping[str, float]", bounds)
        left_x, top, right, bottom = (
            float(sides.get(side, 0)) for side in ("left", "top", "right", "bottom")
        )
    elif isinstance(bounds, Sequence) and len(cast("Sequence[Any]", bounds)) == 4:
        left_x, top, right, bottom = map(float, cast("Sequence[Any]", bounds))
    else:
        return None
    return (left_x, top, right - left_x, bottom - top) if right > left_x and bottom > top else None


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
