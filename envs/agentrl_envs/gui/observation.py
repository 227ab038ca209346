"""Observations of a desktop: its accessibility trees as text, its screen as a picture."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from PIL import Image as Pictures

from agentrl.errors import ConfigError
from agentrl.message import Image
from agentrl.runtime.threads import run_in_thread
from agentrl_envs.accessibility.node import AccessibilityNode
from agentrl_envs.gui.desktop import DesktopSession, ScreenImage
from agentrl_envs.web.observation.look import cap_lines, mark
from agentrl_envs.web.observation.view import check_caps, check_kinds

Kind = Literal["axtree", "screenshot", "marks"]
"""`axtree`: a line per element that matters, with numbers. `screenshot`: the screen as a picture.
`marks`: the picture with the numbers drawn onto the elements."""
KINDS: tuple[Kind, ...] = get_args(Kind)

Reference = tuple[str, str]
"""A program on the accessibility bus and an object of it; or `""` and the number of a window."""
Box = tuple[int, int, int, int]

_ROLES = {
    "alert": "dialog", "check box": "checkbox", "check menu item": "menuitemcheckbox",
    "combo box": "combobox", "dialog": "dialog", "document web": "document", "entry": "textbox",
    "file chooser": "dialog",
    "frame": "window", "label": "text", "list item": "option", "menu item": "menuitem",
    "page tab": "tab", "paragraph": "text", "password text": "textbox", "push button": "button",
    "radio button": "radio", "radio menu item": "menuitemradio", "spin button": "spinbutton",
    "static": "text", "column header": "columnheader", "row header": "rowheader",
    "table cell": "cell",
    "table column header": "columnheader", "table row": "row",
    "text": "textbox", "toggle button": "togglebutton", "tree table": "table",
    "window": "popup",
}  # fmt: skip
_FRAME_ROLES = ("window", "dialog", "popup")
_PLUMBING = {
    "canvas", "drawing area", "filler", "glass pane", "image", "internal frame", "layered pane",
    "landmark", "list", "list item", "menu bar", "option pane", "page tab list", "panel",
    "popup menu", "redundant object",
    "root pane", "scroll bar", "scroll pane", "section", "separator", "split pane", "status bar",
    "statusbar", "table", "tool bar", "tree table", "unknown", "viewport", "form", "grouping",
}  # fmt: skip
"""Roles that tell nothing where they have no name, and have none of their own content."""
_NAMED_BY_CONTENT = {"cell", "columnheader", "heading", "link", "option", "rowheader"}
"""Roles whose content is their name where they have no other."""
_MUTE = {"scroll bar", "separator", "split pane", "viewport"}
_EMBEDDED = "\N{OBJECT REPLACEMENT CHARACTER}"
"""Stands in a text for an element within it, which is told by itself."""
_FLAGS = ("checked", "pressed", "selected", "expanded", "focused", "modal")


@dataclass(frozen=True, slots=True, kw_only=True)
class DesktopObservationOptions:
    """Settings of an observation."""

    kinds: tuple[Kind, ...] = ("axtree",)
    """In the order in which they are shown."""
    max_nodes: int = 600
    """Elements that are looked at; the rest is counted, not shown."""
    max_characters: int = 16_000
    """Of the tree; the rest is counted, not shown."""
    max_name_characters: int = 200
    """Of one name; of what is in a field, ten times as many."""
    scale: float = 1.0
    """Of the picture's sides to the screen's."""
    boxes: bool = False
    """Say of every element where it is, in pixels of the screen."""
    deadline_s: float = 5.0
    """For the programs to tell what they show; one that misses it is named, and left out."""

    def __post_init__(self) -> None:
        check_kinds(self.kinds, KINDS)
        check_caps(self, "max_nodes", "max_characters", "max_name_characters", "deadline_s")
        if not 0 < self.scale <= 1:
            raise ConfigError(f"scale must be above 0 and at most 1, got {self.scale}")

    def scale_size(self, width: int, height: int) -> tuple[int, int]:
        """Return the size of the picture of a screen."""
        return max(1, round(width * self.scale)), max(1, round(height * self.scale))


@dataclass(slots=True)
class ElementNumbers:
    """The numbers of one episode's elements: given in the order they are first shown, for good."""

    given: dict[Reference, int] = field(default_factory=dict[Reference, int])
    boxes: Mapping[int, Box] = field(default_factory=dict[int, Box])
    """Boxes of the elements shown last, in pixels of the screen."""

    def assign(self, reference: Reference) -> int:
        """Return the number of an element, a new one for a new element."""
        return self.given.setdefault(reference, len(self.given) + 1)

    def reference(self, number: int) -> Reference | None:
        """Return the element that has a number."""
        return next(
            (one for one, element_number in self.given.items() if element_number == number), None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DesktopView:
    """Result of one look at the desktop."""

    text: str
    images: tuple[Image, ...]
    nodes: tuple[AccessibilityNode, ...] = ()
    silent: tuple[str, ...] = ()
    """Windows of programs that do not answer."""


async def look(
    desktop: DesktopSession, wants: DesktopObservationOptions, numbers: ElementNumbers
) -> DesktopView:
    """Look at a desktop; raises `EnvError` where it is lost."""
    text, nodes, boxes, silent = "", tuple[AccessibilityNode, ...](), dict[int, Box](), list[str]()
    if {"axtree", "marks"} & set(wants.kinds):
        limit_s = wants.deadline_s
        frame = await desktop.ask(
            "look", limit_s=limit_s, most=wants.max_nodes, within_s=2 * limit_s
        )
        nodes, boxes, silent = build_nodes(frame.body, wants, numbers)
        numbers.boxes = boxes
        if "axtree" in wants.kinds:
            overflow = int(frame.body["left"])
            tree_text, _ = cap_lines([node.line for node in nodes], overflow, wants.max_characters)
            notices = [f"notice: the program of {name!r} does not answer" for name in silent]
            text = "\n".join([*notices, tree_text])
    images: list[Image] = []
    pictured = [kind for kind in wants.kinds if kind != "axtree"]
    if pictured:
        picture = await desktop.picture()
        size = (picture.width, picture.height)
        png = await run_in_thread(encode_png, picture, wants.scale_size(*size))
        for kind in pictured:
            marked = await run_in_thread(mark, png, boxes, size) if kind == "marks" else png
            images.append(Image(marked))
    return DesktopView(text=text, images=tuple(images), nodes=nodes, silent=tuple(silent))


def encode_png(picture: ScreenImage, size: tuple[int, int]) -> bytes:
    """Return a picture of the screen as a PNG of some size."""
    image = Pictures.frombytes(
        "RGB", (picture.width, picture.height), picture.data, "raw", "BGRX", picture.line_bytes
    )
    if size != image.size:
        image = image.resize(size, Pictures.Resampling.BOX, reducing_gap=None)
    out = io.BytesIO()
    image.save(out, "PNG", compress_level=3)
    return out.getvalue()


def build_nodes(
    seen: Mapping[str, Any], wants: DesktopObservationOptions, numbers: ElementNumbers
) -> tuple[tuple[AccessibilityNode, ...], dict[int, Box], list[str]]:
    """Return the lines of the tree, the boxes by number, and the windows that do not answer.

    `seen` is the answer to `look` of the first process of a desktop.
    """
    nodes: list[AccessibilityNode] = []
    boxes: dict[int, Box] = {}
    windows: list[dict[str, Any]] = [one for one in seen["windows"] if one["managed"]]
    depths: list[tuple[int, int, str]] = []
    elements = [_strip_embedded(one) for one in seen["elements"]]
    for at, (reference, depth, role, name, states, box, text, value, pid) in enumerate(elements):
        while depths and depths[-1][0] >= depth:
            depths.pop()
        node = _build_node(role, name.strip(), set(states), box, text, value, wants)
        if node is None or (depths and node.role == "text" and node.name == depths[-1][2]):
            continue
        if depth == 0 and not name and not _has_content(elements[at + 1 :], wants):
            continue
        if depth == 0:
            window = _find_window(windows, pid, name)
            if window is not None:
                windows.remove(window)
            if window is not None and window["active"]:
                node = replace(node, attributes={**node.attributes, "active": ""})
        shown_depth = depths[-1][1] + 1 if depths else 0
        depths.append((depth, shown_depth, node.name))
        number = (
            numbers.assign((reference[0], reference[1])) if _can_be_acted_on(node, box) else None
        )
        if number is not None:
            boxes[number] = box[0], box[1], box[2], box[3]
        nodes.append(replace(node, id=number, depth=shown_depth))
    silent = set(seen["silent"])
    for window in windows:
        number = numbers.assign(("", str(window["id"])))
        boxes[number] = window["x"], window["y"], window["width"], window["height"]
        node = AccessibilityNode(
            role="window", name=_cut(window["title"], wants.max_name_characters)
        )
        if window["active"]:
            node = replace(node, attributes={**node.attributes, "active": ""})
        nodes.append(replace(node, id=number, depth=0))
    names = [w["title"] for w in seen["windows"] if w["pid"] in silent and w["managed"]]
    return tuple(nodes), boxes, names


def _strip_embedded(element: list[Any]) -> list[Any]:
    """Return an element without the marks in its text for what is within it.

    A text with such marks is told by what is within, unless somebody can write into it.
    """
    *first, states, box, text, value, pid = element
    if text is not None and _EMBEDDED in text:
        text = text.replace(_EMBEDDED, "") if "editable" in states else None
    return [*first, states, box, text, value, pid]


def _has_content(after: Sequence[list[Any]], wants: DesktopObservationOptions) -> bool:
    """Say whether a top window has anything to say, by the elements that come after it."""
    for _, depth, role, name, states, box, text, value, _ in after:
        if depth == 0:
            return False
        if _build_node(role, name.strip(), set(states), box, text, value, wants) is not None:
            return True
    return False


def _build_node(
    role: str,
    name: str,
    states: set[str],
    box: list[int],
    text: str | None,
    value: float | None,
    wants: DesktopObservationOptions,
) -> AccessibilityNode | None:
    """Return the node of an element, or None where there is nothing to say."""
    web_role = _ROLES.get(role, role.replace(" ", "-"))
    if web_role in _NAMED_BY_CONTENT and text is not None:
        name, text = name or " ".join(text.split()), None
    has_place = box[2] > 0 and box[3] > 0
    if role in _MUTE or (not name and role in _PLUMBING) or (role == "icon" and not name):
        return None
    if role == "table cell" and (not has_place or not (name or text or "checked" in states)):
        return None
    if web_role == "text":
        words = _cut(" ".join((text or name).split()), wants.max_name_characters)
        return AccessibilityNode(role="text", name=words) if words else None
    attributes: dict[str, str] = {}
    if text is not None and web_role not in ("button", "togglebutton", "checkbox", "radio", "cell"):
        # What a terminal has just written, and its prompt, are at the end.
        cut = _cut_start if web_role == "terminal" else _cut
        attributes["value"] = cut(text.rstrip("\n"), wants.max_name_characters * 10)
        if not attributes["value"]:
            del attributes["value"]
    elif value is not None and web_role not in _FRAME_ROLES:
        attributes["value"] = f"{value:g}"
    attributes |= {flag: "" for flag in _FLAGS if flag in states}
    if not {"sensitive", "enabled"} & states:
        attributes["disabled"] = ""
    if wants.boxes and has_place:
        attributes["at"] = f"{box[0]},{box[1]}"
        attributes["size"] = f"{box[2]}x{box[3]}"
    label = name if name != attributes.get("value") else ""
    role_name = web_role if web_role[:1].isalpha() else "element"
    return AccessibilityNode(
        role=role_name, name=_cut(label, wants.max_name_characters), attributes=attributes
    )


def _can_be_acted_on(node: AccessibilityNode, box: list[int]) -> bool:
    return node.role != "text" and box[2] > 0 and box[3] > 0


def _find_window(windows: list[dict[str, Any]], pid: int, name: str) -> dict[str, Any] | None:
    """Return the window that an accessible frame is, by its title, else by its program."""
    same = [one for one in windows if one["pid"] == pid or one["title"] == name]
    same.sort(key=lambda one: (one["title"] != name, one["pid"] != pid))
    return same[0] if same else None


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _cut_start(text: str, most: int) -> str:
    return text if len(text) <= most else f"…{text[len(text) - most + 1 :]}"
