"""Sections of a docstring in Google's style, as far as a tool is described by them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from inspect import cleandoc

_HEADING = re.compile(r"(Args|Returns|Raises):")
_ITEM = re.compile(r"(?P<indent>[ \t]*)(?P<name>\w+):(?P<text>.*)")


@dataclass(frozen=True, slots=True)
class DocSections:
    """Content of a docstring by its sections."""

    description: str
    """Everything above the first section."""
    arguments: dict[str, str]
    """Description of each parameter, on one line; empty without an `Args:` section."""
    returns: str
    """Text of the `Returns:` section; empty without one."""


def parse_docstring(text: str) -> DocSections:
    """Split a docstring into its sections."""
    lines = cleandoc(text).split("\n")
    starts = [at for at, line in enumerate(lines) if _HEADING.match(line.strip())]
    ends = [*starts[1:], len(lines)]
    bodies = {
        lines[start].strip(): lines[start + 1 : end]
        for start, end in zip(starts, ends[: len(starts)], strict=True)
    }
    return DocSections(
        description="\n".join(lines[: starts[0]] if starts else lines).strip(),
        arguments=_parse_items(bodies.get("Args:", ())),
        returns="\n".join(bodies.get("Returns:", ())).strip(),
    )


def _parse_items(lines: Sequence[str]) -> dict[str, str]:
    """Return the texts of `name: text` items; a line that is indented deeper goes on with one."""
    items: dict[str, list[str]] = {}
    name, indent = "", 0
    for line in lines:
        item = _ITEM.fullmatch(line)
        if item is not None and (not items or len(item["indent"]) <= indent):
            name, indent = item["name"], len(item["indent"])
            items[name] = [item["text"].strip()]
        elif items and line.strip():
            items[name].append(line.strip())
    return {name: " ".join(filter(None, texts)) for name, texts in items.items()}
