"""State that checkers read: the files of a folder, all of them, and a spreadsheet's cells."""

import re
import zlib
from collections.abc import Mapping
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from agentrl_envs.gui.markup import read_markup
from agentrl_envs.gui.world import LiveDesktop
from agentrl_envs.templates import Wanted

FOLDER = "Documents"
_GNM = "http://www.gnumeric.org/v10.dtd"
_SHEET_BYTES = 8 * 2**20
_NUMBER, _STRING = "40", "60"
_NUMBERED = re.compile(r"[0-9]{1,7}")

Cells = dict[str, str]
"""Contents of the filled cells of a sheet, by name such as `B3`."""


def documents(wanted: Wanted) -> Mapping[str, bytes]:
    """Return the files that `wanted["files"]` puts into the folder; a name with `/` is a folder."""
    folders = {f"{FOLDER}/": b""}
    return folders | {f"{FOLDER}/{name}": text.encode() for name, text in wanted["files"].items()}


async def are_documents_right(desktop: LiveDesktop, wanted: Wanted, said: str) -> bool:
    """Say whether the folder holds `wanted["after"]` and nothing else.

    A line break at the end of a file is neither here nor there.
    """
    after: Mapping[str, str] = wanted["after"]
    there = await desktop.files(FOLDER)
    expected = {name.rstrip("/"): "folder" if name.endswith("/") else "file" for name in after}
    if there != expected:
        return False
    for name, text in after.items():
        if not name.endswith("/"):
            data = await desktop.read(f"{FOLDER}/{name}")
            if data is None or _lines(data) != _lines(text.encode()):
                return False
    return True


async def is_answered(desktop: LiveDesktop, wanted: Wanted, said: str) -> bool:
    """Say whether the answer is right, and the folder as it was."""
    same = {**wanted, "after": wanted["files"]}
    right = " ".join(said.split()).casefold() == " ".join(wanted["answer"].split()).casefold()
    return right and await are_documents_right(desktop, same, said)


def sheet(cells: Cells) -> bytes:
    """Return a workbook of one sheet in Gnumeric's format."""
    cell_tags = [
        f'<gnm:Cell Row="{row}" Col="{col}" ValueType="{_NUMBER if _is_number(text) else _STRING}">'
        f"{escape(text)}</gnm:Cell>"
        for (row, col), text in sorted((_place(name), text) for name, text in cells.items())
    ]
    return (
        f'<?xml version="1.0" encoding="UTF-8"?><gnm:Workbook xmlns:gnm="{_GNM}">'
        '<gnm:SheetNameIndex><gnm:SheetName gnm:Cols="256" gnm:Rows="65536">Sheet1'
        "</gnm:SheetName></gnm:SheetNameIndex><gnm:Sheets>"
        f"<gnm:Sheet><gnm:Name>Sheet1</gnm:Name><gnm:Cells>{''.join(cell_tags)}</gnm:Cells>"
        "</gnm:Sheet></gnm:Sheets></gnm:Workbook>"
    ).encode()


def cells_of(data: bytes) -> Cells | None:
    """Return the cells of a workbook's first sheet; None for what is no workbook of that format.

    One at the limits takes a second: where a loop runs, call it in a thread.
    """
    try:
        if data[:2] == b"\x1f\x8b":
            # An agent may have written it: a small file must not become a large one.
            data = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(data, _SHEET_BYTES)
        root = read_markup(data[:_SHEET_BYTES])
    except (ElementTree.ParseError, zlib.error, ValueError):
        return None
    cells: Cells = {}
    for one in root.iterfind(f"{{{_GNM}}}Sheets/{{{_GNM}}}Sheet[1]/{{{_GNM}}}Cells/{{{_GNM}}}Cell"):
        row, col = one.get("Row", ""), one.get("Col", "")
        if not (_NUMBERED.fullmatch(row) and _NUMBERED.fullmatch(col) and int(col) < 26):
            return None
        cells[f"{chr(ord('A') + int(col))}{int(row) + 1}"] = one.text or ""
    return cells


def _place(name: str) -> tuple[int, int]:
    return int(name[1:]) - 1, ord(name[0]) - ord("A")


def _is_number(text: str) -> bool:
    return text.removeprefix("-").replace(".", "", 1).isdecimal()


def _lines(data: bytes) -> list[bytes]:
    return data.removesuffix(b"\n").split(b"\n")
