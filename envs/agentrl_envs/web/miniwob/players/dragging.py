"""Players of families that are solved by dragging."""

from collections.abc import Sequence

from agentrl.env import Action
from agentrl_envs.web.miniwob.players.clicking import fits
from agentrl_envs.web.miniwob.players.scene import (
    PlayerConversation,
    drag_at,
    plans,
    plays,
    search,
    submit,
)
from agentrl_envs.web.observation import AccessibilityNode, ObservedPage

_WAYS = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}


@plans("drag-box")
def _(scene: PlayerConversation) -> Sequence[Action]:
    small, large = scene.first.find("generic", "s"), scene.first.find("generic", "L")
    return [drag_at(small.at, large.at), submit(scene.first)]


@plans("drag-circle", "drag-single-shape")
def _(scene: PlayerConversation) -> Sequence[Action]:
    (way,) = search(r"(left|right|up|down)", scene.goal)
    shape = next(n for n in scene.first.nodes if n.role in ("circle", "rect", "polygon", "label"))
    (x, y), (right, down) = shape.at, _WAYS[way]
    return [drag_at((x, y), (x + 25 * right, y + 25 * down)), submit(scene.first)]


@plans("drag-shapes", "drag-shapes-2")
def _(scene: PlayerConversation) -> Sequence[Action]:
    shapes = [n for n in scene.first.nodes if n.role in ("circle", "rect", "polygon")]
    boxes = sorted((n for n in shapes if not n.has("fill")), key=lambda box: box.at)
    (target,) = search(r"Drag all (.+?) into", scene.goal)
    actions = list[Action]()
    for shape in shapes:
        if shape in boxes:
            continue
        box = boxes[0] if fits(shape, target) else boxes[1] if len(boxes) > 1 else None
        if box is not None:
            actions.append(drag_at(shape.at, box.at))
    return [*actions, submit(scene.first)]


@plans("drag-items")
def _(scene: PlayerConversation) -> Sequence[Action]:
    items = _find_items(scene.first)
    name, where = search(r"Drag (\S+) (.+)\.", scene.goal)
    at = next(at for at, item in enumerate(items) if item.name == name)
    to = _find_position(where, at, len(items))
    return [_drag_into(items[at], items[to])]


@plays("drag-sort-numbers")
def _(scene: PlayerConversation) -> Action:
    """Bring the smallest that is not in its place there."""
    items = _find_items(scene.page)
    numbers = [int(item.name) for item in items]
    for at, number in enumerate(sorted(numbers)):
        if numbers[at] != number:
            return _drag_into(items[numbers.index(number, at)], items[at])
    return submit(scene.page)


@plans("resize-textarea")
def _(scene: PlayerConversation) -> Sequence[Action]:
    side, change = search(r"the (width|height) is (larger|smaller)", scene.goal)
    corner = next(n for n in scene.first.nodes if "ui-resizable-se" in n.value("class"))
    by = 25 if change == "larger" else -20
    x, y = corner.at
    end = (x + by, y) if side == "width" else (x, y + by)
    return [drag_at((x, y), end), submit(scene.first)]


def _find_items(page: ObservedPage) -> list[AccessibilityNode]:
    items = [n for n in page.nodes if n.role == "generic" and n.name and n.has("at")]
    return sorted(items, key=lambda item: item.at[1])


def _find_position(where: str, at: int, count: int) -> int:
    if "bottom" in where:
        return count - 1
    if "top" in where:
        return 0
    if "by one" in where:
        return at + 1 if "down" in where else at - 1
    (nth,) = search(r"the (\d+)", where)
    return int(nth) - 1


def _drag_into(item: AccessibilityNode, place: AccessibilityNode) -> Action:
    beyond = 8 if place.at[1] > item.at[1] else -8
    return drag_at(item.at, (place.at[0], place.at[1] + beyond))
