"""Workbooks in Excel's format as checkers read them: names of sheets and values of cells.

A small reader of its own: what an agent saved must not become more than it is, so sizes are bounded
and nothing outside the file is ever looked up. A workbook at the limits takes a second: where a
loop runs, read it in a thread.
"""

import io
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from xml.etree import ElementTree

from agentrl_envs.gui.markup import read_markup

MAX_BYTES: Final = 8 * 2**20
"""Of a workbook, and of all its parts together as they are unpacked."""
MAX_PARTS: Final = 2000
"""Of one archive."""
MAX_SHEETS: Final = 255
_ENTRY = b"PK\x01\x02"
"""Begins what an archive says of a part."""
_MAIN = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
_RELATION = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}id"
_PACKAGE = "{http://schemas.openxmlformats.org/package/2006/relationships}"
_NAME = re.compile(r"([A-Z]{1,3})([1-9][0-9]{0,6})")

Value = str | float | bool
"""Value of a cell: a text, a number, or a truth."""


class NoWorkbook(Exception):
    """The bytes are no workbook that can be read."""


@dataclass(frozen=True, slots=True)
class WorkbookSheet:
    """One sheet of a workbook."""

    name: str
    cells: Mapping[tuple[int, int], Value]
    """By row and column, both from 1; only those that hold something."""

    def row(self, number: int) -> list[Value | None]:
        """Return a row's values up to the last column that holds something anywhere."""
        last = max((column for _, column in self.cells), default=0)
        return [self.cells.get((number, column)) for column in range(1, last + 1)]


def place(name: str) -> tuple[int, int]:
    """Return row and column of a cell's name, both from 1. ValueError for no such name."""
    cell_match = _NAME.fullmatch(name)
    if cell_match is None:
        raise ValueError(f"{name!r} is not the name of a cell; use names such as B3")
    column = 0
    for letter in cell_match[1]:
        column = column * 26 + ord(letter) - ord("A") + 1
    return int(cell_match[2]), column


def format_value(value: Value | None) -> str:
    """Return a value as a text; whole numbers without a point."""
    return f"{int(value)}" if isinstance(value, float) and value.is_integer() else str(value)


def workbook(data: bytes) -> list[WorkbookSheet]:
    """Return the sheets of a workbook in their order.

    Raises `NoWorkbook`, also for one that is over a limit.
    """
    if len(data) > MAX_BYTES or data.count(_ENTRY) > MAX_PARTS:
        raise NoWorkbook(f"{len(data)} bytes are too many for a workbook")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as packed:
            parts = _Parts(packed)
            shared = parts.strings()
            sheets = parts.root("xl/workbook.xml").findall(f"{_MAIN}sheets/{_MAIN}sheet")
            if len(sheets) > MAX_SHEETS:
                raise NoWorkbook(f"{len(sheets)} sheets exceed the limit of {MAX_SHEETS}")
            relations = parts.root("xl/_rels/workbook.xml.rels")
            targets = {
                one.get("Id", ""): one.get("Target", "")
                for one in relations.iterfind(f"{_PACKAGE}Relationship")
            }
            return [
                WorkbookSheet(
                    sheet.get("name", ""),
                    _cells(parts.root(_path(targets[sheet.get(_RELATION, "")])), shared),
                )
                for sheet in sheets
            ]
    except (zipfile.BadZipFile, ElementTree.ParseError, KeyError, ValueError, IndexError) as error:
        raise NoWorkbook(f"{error}") from error
    except (EOFError, OSError, NotImplementedError, RuntimeError) as error:
        raise NoWorkbook(f"{error}") from error


def _path(target: str) -> str:
    return target.removeprefix("/") if target.startswith("/") else f"xl/{target}"


class _Parts:
    """The parts of an open archive, read once each."""

    def __init__(self, packed: zipfile.ZipFile) -> None:
        self._packed = packed
        self._roots: dict[str, ElementTree.Element] = {}
        self._left = MAX_BYTES

    def root(self, name: str) -> ElementTree.Element:
        if name not in self._roots:
            with self._packed.open(name) as file:
                data = file.read(self._left + 1)
            self._left -= len(data)
            if self._left < 0:
                raise NoWorkbook(f"its parts exceed the limit of {MAX_BYTES} bytes")
            self._roots[name] = read_markup(data)
        return self._roots[name]

    def strings(self) -> list[str]:
        name = "xl/sharedStrings.xml"
        if name not in self._packed.namelist():
            return []
        return [_text(one) for one in self.root(name).iterfind(f"{_MAIN}si")]


def _text(element: ElementTree.Element) -> str:
    """Return the text of a string, without how its signs are read aloud."""
    runs = element.findall(f"{_MAIN}t") or element.findall(f"{_MAIN}r/{_MAIN}t")
    return "".join(one.text or "" for one in runs)


def _cells(sheet: ElementTree.Element, shared: list[str]) -> dict[tuple[int, int], Value]:
    cells: dict[tuple[int, int], Value] = {}
    for cell in sheet.iterfind(f"{_MAIN}sheetData/{_MAIN}row/{_MAIN}c"):
        value = _value(cell, shared)
        if value is not None and value != "":
            cells[place(cell.get("r", ""))] = value
    return cells


def _value(cell: ElementTree.Element, shared: list[str]) -> Value | None:
    kind = cell.get("t", "n")
    if kind == "inlineStr":
        inline = cell.find(f"{_MAIN}is")
        return None if inline is None else _text(inline)
    text = cell.findtext(f"{_MAIN}v")
    if text is None:
        return None
    match kind:
        case "s":
            return shared[int(text)]
        case "b":
            return text == "1"
        case "str" | "e" | "d":
            return text
        case _:
            return float(text)
