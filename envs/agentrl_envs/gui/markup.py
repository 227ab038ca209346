"""Markup in files that an agent saved: parsed within limits, and nothing outside is looked up."""

from collections.abc import Iterator
from typing import Final, cast
from xml.etree import ElementTree

MAX_ELEMENTS: Final = 400_000
"""Of one document; an element takes a hundred bytes and a microsecond."""
MAX_ATTRIBUTES: Final = 4 * MAX_ELEMENTS
MAX_DEPTH: Final = 100
_CHUNK_BYTES = 64 * 2**10
"""Parsed at a time: other threads wait for so long."""


def read_markup(data: bytes) -> ElementTree.Element:
    """Return the root of a document.

    Raises `ValueError` for one over a limit or with definitions of its own, `ParseError` for one
    that is no markup.
    """
    if b"<!DOCTYPE" in data or b"<!ENTITY" in data:
        raise ValueError("documents with entity definitions of their own are not supported")
    tags, attributes = data.count(b"<"), data.count(b"=")
    if tags > 2 * MAX_ELEMENTS or attributes > MAX_ATTRIBUTES:
        raise ValueError(
            f"a document may have at most {MAX_ELEMENTS} elements with four attributes each"
        )
    parser = ElementTree.XMLPullParser(("start", "end"))
    root, depth = None, 0
    for start in range(0, len(data), _CHUNK_BYTES):
        parser.feed(data[start : start + _CHUNK_BYTES])
        events = cast("Iterator[tuple[str, ElementTree.Element]]", parser.read_events())
        for event, element in events:
            root = element if root is None else root
            depth += 1 if event == "start" else -1
            if depth > MAX_DEPTH:
                raise ValueError(f"elements are nested deeper than {MAX_DEPTH}")
    parser.close()
    if root is None:
        raise ValueError("a document without an element")
    return root
