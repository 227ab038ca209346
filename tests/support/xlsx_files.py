"""Workbooks in Excel's format for tests, written from nothing."""

import io
import zipfile
from collections.abc import Mapping
from xml.sax.saxutils import escape

from agentrl_envs.gui.osworld.tables import place

SPREADSHEET = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
PACKAGE = "http://schemas.openxmlformats.org/package/2006"
SHEET = f'<worksheet xmlns="{SPREADSHEET}"><sheetData/></worksheet>'.encode()

Cells = Mapping[str, str | float]


def xlsx(**sheets: Cells) -> bytes:
    """Return a workbook with inline texts, as a program may write it."""
    names = list(sheets)
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as packed:
        types = "".join(
            f'<Override PartName="/xl/worksheets/sheet{i}.xml" ContentType="application/vnd.'
            'openxmlformats-officedocument.spreadsheetml.worksheet+xml"/>'
            for i, _ in enumerate(names)
        )
        packed.writestr(
            "[Content_Types].xml",
            f'<Types xmlns="{PACKAGE}/content-types"><Default Extension="rels" ContentType='
            '"application/vnd.openxmlformats-package.relationships+xml"/><Override PartName="/xl/'
            'workbook.xml" ContentType="application/vnd.openxmlformats-officedocument.'
            f'spreadsheetml.sheet.main+xml"/>{types}</Types>',
        )
        packed.writestr("_rels/.rels", relations(("workbook", "officeDocument", "xl/workbook.xml")))
        packed.writestr(
            "xl/_rels/workbook.xml.rels",
            relations(
                *((f"s{i}", "worksheet", f"worksheets/sheet{i}.xml") for i, _ in enumerate(names))
            ),
        )
        listed = "".join(
            f'<sheet name="{escape(name)}" sheetId="{i + 1}" r:id="s{i}"/>'
            for i, name in enumerate(names)
        )
        packed.writestr(
            "xl/workbook.xml",
            f'<workbook xmlns="{SPREADSHEET}" xmlns:r="{OFFICE}"><sheets>{listed}</sheets>'
            "</workbook>",
        )
        for i, name in enumerate(names):
            packed.writestr(f"xl/worksheets/sheet{i}.xml", worksheet(sheets[name]))
    return made.getvalue()


def relations(*those: tuple[str, str, str]) -> str:
    made = "".join(
        f'<Relationship Id="{name}" Type="{OFFICE}/{kind}" Target="{target}"/>'
        for name, kind, target in those
    )
    return f'<Relationships xmlns="{PACKAGE}/relationships">{made}</Relationships>'


def worksheet(cells: Cells) -> str:
    rows: dict[int, list[str]] = {}
    for name, value in sorted(cells.items(), key=lambda item: place(item[0])):
        made = (
            f'<c r="{name}" t="inlineStr"><is><t>{escape(value)}</t></is></c>'
            if isinstance(value, str)
            else f'<c r="{name}"><v>{value}</v></c>'
        )
        rows.setdefault(place(name)[0], []).append(made)
    body = "".join(f'<row r="{row}">{"".join(made)}</row>' for row, made in rows.items())
    return f'<worksheet xmlns="{SPREADSHEET}"><sheetData>{body}</sheetData></worksheet>'


def archive(part: bytes, *, sheets: int = 1, entries: int = 0) -> bytes:
    """Return a workbook whose every sheet is one and the same part."""
    made = io.BytesIO()
    book = "".join(f'<sheet name="s" sheetId="{n}" r:id="r"/>' for n in range(sheets))
    spaces = f'xmlns="{SPREADSHEET}" xmlns:r="{OFFICE}"'
    relation = f'<Relationship xmlns="{PACKAGE}/relationships" Id="r" Target="s.xml"/>'
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("xl/workbook.xml", f"<workbook {spaces}><sheets>{book}</sheets></workbook>")
        packed.writestr("xl/_rels/workbook.xml.rels", f"<x>{relation}</x>")
        packed.writestr("xl/s.xml", part)
        for number in range(entries):
            packed.writestr(f"x{number}", b"")
    return made.getvalue()
