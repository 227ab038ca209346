"""One line of an accessibility tree: an element, or text between elements."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

_INDENT: Final = "  "
_PLAIN = re.compile(r"[^\s\"\\=]+\Z")
_HEAD = re.compile(
    r"(?P<indent>(?:  )*)(?P<role>[a-z][\w-]*)"
    r"(?: \"(?P<name>(?:[^\"\\]|\\.)*)\")?(?: \[(?P<id>\d+)\])?"
)
_PART = re.compile(
    r" (?P<key>[a-z][\w-]*)(?:=(?:\"(?P<quoted>(?:[^\"\\]|\\.)*)\"|(?P<bare>[^\s\"\\=]+)))?"
)
_ESCAPED = re.compile(r"\\(.)")
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessibilityNode:
    """An element of a page as the agent reads it."""

    role: str
    """Such as `button`, `textbox`, `link`; `text` for static text; an SVG shape's own name."""
    name: str = ""
    id: int | None = None
    """Number by which actions name it; None for a node that cannot be acted on."""
    depth: int = 0
    attributes: Mapping[str, str] = field(default_factory=dict[str, str])
    """Such as `value`, `options`, `fill`; a flag such as `checked` has the value `""`."""

    def has(self, flag: str) -> bool:
        """Say whether an attribute or a flag is there."""
        return flag in self.attributes

    def value(self, attribute: str = "value") -> str:
        """Return an attribute, or `""` where it is missing."""
        return self.attributes.get(attribute, "")

    @property
    def at(self) -> tuple[float, float]:
        """Return the middle in pixels of the viewport; `KeyError` where the line does not say."""
        x, y = self.attributes["at"].split(",")
        return float(x), float(y)

    @property
    def size(self) -> tuple[float, float]:
        """Return width and height in pixels; `KeyError` where the line does not say."""
        width, height = self.attributes["size"].split("x")
        return float(width), float(height)

    @property
    def line(self) -> str:
        """Return the node as its line of the tree, without a line break.

        The number follows the name: a model that reads from left to right, and copies, finds it
        there.
        """
        parts = [f"{_INDENT * self.depth}{self.role}"]
        if self.name:
            parts.append(_quote(self.name))
        if self.id is not None:
            parts.append(f"[{self.id}]")
        parts += [_attribute(key, value) for key, value in self.attributes.items()]
        return " ".join(parts)


def node_of(line: str) -> AccessibilityNode | None:
    """Read a line that `AccessibilityNode.line` wrote; None where it is something else."""
    head = _HEAD.match(line)
    if head is None:
        return None
    attributes, at = dict[str, str](), head.end()
    while at < len(line):
        part = _PART.match(line, at)
        if part is None:
            return None
        if part["quoted"] is not None:
            attributes[part["key"]] = _unquote(part["quoted"])
        else:
            attributes[part["key"]] = part["bare"] or ""
        at = part.end()
    return AccessibilityNode(
        role=head["role"],
        name=_unquote(head["name"] or ""),
        id=None if head["id"] is None else int(head["id"]),
        depth=len(head["indent"]) // len(_INDENT),
        attributes=attributes,
    )


def _attribute(key: str, value: str) -> str:
    if not value:
        return key
    return f"{key}={value if _PLAIN.match(value) else _quote(value)}"


def _quote(text: str) -> str:
    return f'"{text.translate(_ESCAPES)}"'


def _unquote(text: str) -> str:
    return _ESCAPED.sub(lambda found: "\n" if found[1] == "n" else found[1], text)
