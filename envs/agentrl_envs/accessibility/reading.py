"""Reading an observation back: what gold players see is what the agent sees."""

import re
from dataclasses import dataclass
from itertools import takewhile

from agentrl.env import Action
from agentrl_envs.accessibility.node import AccessibilityNode, node_of

_ELEMENT_ARGUMENTS = ("element", "id")
"""Parameters of the tools of desktops and pages that take the number of an element."""
_OTHER_KIND = re.compile(r"\n(?:text|dom):\n")
"""Heading of a part of an observation that is no tree; an empty line stands between parts, and in
none."""
_GOAL = re.compile(r"Goal: (?P<goal>.*?)(?=\n(?:url|screen): |\Z)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedPage:
    """A page as it was shown, in reading order."""

    url: str = ""
    title: str = ""
    goal: str = ""
    """Only in the opening message."""
    nodes: tuple[AccessibilityNode, ...] = ()

    def all(
        self, role: str | None = None, name: str | None = None, *, contains: str | None = None
    ) -> tuple[AccessibilityNode, ...]:
        """Return the nodes with this role, this exact name and this text within the name."""
        return tuple(
            node
            for node in self.nodes
            if (role is None or node.role == role)
            and (name is None or node.name == name)
            and (contains is None or contains in node.name)
        )

    def find(
        self, role: str | None = None, name: str | None = None, *, contains: str | None = None
    ) -> AccessibilityNode:
        """Return the first such node that can be acted on.

        Raises `LookupError` saying what is there instead.
        """
        for node in self.all(role, name, contains=contains):
            if node.id is not None:
                return node
        there = "; ".join(node.line.strip() for node in self.nodes[:40])
        query = f"role={role!r}, name={name!r}, contains={contains!r}"
        raise LookupError(f"no element with {query} on {self.url or 'the page'}: {there}")

    def id(
        self, role: str | None = None, name: str | None = None, *, contains: str | None = None
    ) -> int:
        """Return the id of the first such node; raises as `find` does."""
        node_id = self.find(role, name, contains=contains).id
        assert node_id is not None
        return node_id

    def under(self, node: AccessibilityNode) -> tuple[AccessibilityNode, ...]:
        """Return the nodes inside a node of this page."""
        start = next(at for at, one in enumerate(self.nodes) if one is node)
        return tuple(takewhile(lambda one: one.depth > node.depth, self.nodes[start + 1 :]))

    @property
    def text(self) -> str:
        """Return all names in reading order, one a line."""
        return "\n".join(node.name for node in self.nodes if node.name)


def read(text: str) -> ObservedPage:
    """Read the text of an observation with an accessibility tree.

    Lines that are nothing of the kind (an error, a count of what was left out) are passed over, and
    so are the other parts of an observation of several kinds.
    """
    goal = _GOAL.match(text)
    rest = text[goal.end() :] if goal else text
    first, *others = rest.split("\n\n")
    trees = [part for part in others if part.startswith("axtree:\n")]
    if trees:
        rest = f"{_OTHER_KIND.split(first)[0]}\n{trees[0]}"
    elif any(_OTHER_KIND.match(f"\n{part}") for part in others):
        rest = first
    header = dict[str, str]()
    nodes = list[AccessibilityNode]()
    for line in rest.split("\n"):
        key, _, value = line.partition(": ")
        if key in ("url", "title") and key not in header and not nodes:
            header[key] = value
        elif (node := node_of(line)) is not None:
            nodes.append(node)
    return ObservedPage(
        url=header.get("url", ""),
        title=header.get("title", ""),
        goal=goal["goal"].strip() if goal else "",
        nodes=tuple(nodes),
    )


def element_name(action: Action, page: ObservedPage) -> str:
    """Return the name of the element that the first call acts on; `""` for none, and no name."""
    arguments = action.tool_calls[0].arguments if action.tool_calls else {}
    numbers = [arguments[key] for key in _ELEMENT_ARGUMENTS if key in arguments]
    return next((node.name for node in page.nodes if node.id in numbers), "")
