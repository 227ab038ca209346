"""Workbooks in Excel's format as checkers read them: names of sheets and values of cells.

A small reader of its own: what an agent saved must not become more than it is, so sizes are bounded
and nothing outside the file is ever looked up.
"""

import io
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from xml.etree import ElementTree

_PART_BYTES = 16 * 2**20
_MAIN = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
_RELATION = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}id"
_PACKAGE = "{http://schemas.openxmlformats.org/package/2006/relationships}"
_NAME = re.compile(r"([A-Z]{1,3})([1-9][0-9]{0,6})")

Value = str | float | bool
"""What is in a cell: a text, a number, or a truth."""


class NoWorkbook(Exception):
    """The bytes are no workbook that can be read."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """One sheet of a workbook."""

    name: str
    cells: Mapping[tuple[int, int], Value]
    """By row and column, both from 1; only those that hold something."""

    def at(self, name: str) -> Value | None:
        """Return what is in a cell named such as `B3`. ValueError for no name of a cell."""
        return self.cells.get(place(name))

    def row(self, number: int) -> list[Value | None]:
        """Return a row's values up to the last column that holds something anywhere."""
        last = max((column for _, column in self.cells), default=0)
        return [self.cells.get((number, column)) for column in range(1, last + 1)]


def place(name: str) -> tuple[int, int]:
    """Return row and column of a cell's name, both from 1. ValueError for no such name."""
    found = _NAME.fullmatch(name)
    if found is None:
        raise ValueError(f"{name!r} names no cell; names are such as B3")
    column = 0
    for letter in found[1]:
        column = column * 26 + ord(letter) - ord("A") + 1
    return int(found[2]), column


def shown(value: Value | None) -> str:
    """Return a value as a text; whole numbers without a point."""
    return f"{int(value)}" if isinstance(value, float) and value.is_integer() else str(value)


def workbook(data: bytes) -> list[Sheet]:
    """Return the sheets of a workbook in their order. Raises `NoWorkbook`."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as packed:
            shared = _shared(packed)
            sheets = _part(packed, "xl/workbook.xml").iterfind(f"{_MAIN}sheets/{_MAIN}sheet")
            targets = {
                one.get("Id", ""): one.get("Target", "")
                for one in _part(packed, "xl/_rels/workbook.xml.rels").iterfind(
                    f"{_PACKAGE}Relationship"
                )
            }
            return [
                Sheet(
                    sheet.get("name", ""),
                    _cells(_part(packed, _path(targets[sheet.get(_RELATION, "")])), shared),
                )
                for sheet in sheets
            ]
    except (zipfile.BadZipFile, ElementTree.ParseError, KeyError, ValueError, IndexError) as error:
        raise NoWorkbook(f"{error}") from error
    except (EOFError, OSError, NotImplementedError, RuntimeError) as error:
        raise NoWorkbook(f"{error}") from error


def _path(target: str) -> str:
    return target.removeprefix("/") if target.startswith("/") else f"xl/{target}"


def _part(packed: zipfile.ZipFile, name: str) -> ElementTree.Element:
    with packed.open(name) as file:
        data = file.read(_PART_BYTES + 1)
    if len(data) > _PART_BYTES or b"<!DOCTYPE" in data or b"<!ENTITY" in data:
        raise NoWorkbook(f"{name} is more than a part of a workbook")
    return ElementTree.fromstring(data)


def _shared(packed: zipfile.ZipFile) -> list[str]:
    if "xl/sharedStrings.xml" not in packed.namelist():
        return []
    return [_text(one) for one in _part(packed, "xl/sharedStrings.xml").iterfind(f"{_MAIN}si")]


def _text(element: ElementTree.Element) -> str:
    """Return the text of a string, without how its signs are read aloud."""
    runs = element.findall(f"{_MAIN}t") or element.findall(f"{_MAIN}r/{_MAIN}t")
    return "".join(one.text or "" for one in runs)


def _cells(sheet: ElementTree.Element, shared: list[str]) -> dict[tuple[int, int], Value]:
    found: dict[tuple[int, int], Value] = {}
    for cell in sheet.iterfind(f"{_MAIN}sheetData/{_MAIN}row/{_MAIN}c"):
        value = _value(cell, shared)
        if value is not None and value != "":
            found[place(cell.get("r", ""))] = value
    return found


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
