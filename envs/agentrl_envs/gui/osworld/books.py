"""Comparing workbooks: the rules of OSWorld's metric for tables that are about values."""

from collections.abc import Mapping, Sequence
from typing import Any

from agentrl_envs.gui.osworld.rules import is_known, is_ruled, ratio
from agentrl_envs.gui.osworld.tables import (
    NoWorkbook,
    Value,
    WorkbookSheet,
    format_value,
    place,
    workbook,
)

_FUZZY = ("includes", "included_by", "fuzzy_match", "exact_match")
_CELLS_MAX = 10_000
_PRECISION = 4


def table_needs(options: Mapping[str, Any]) -> list[str]:
    """Return the unmet needs of the rules of a comparison."""
    needs: list[str] = []
    for rule in options.get("rules", ()):
        kind = rule.get("type")
        if kind == "check_cell":
            others = [name for name in rule["props"] if name != "value"]
            methods = [one["method"] for one in rule["props"].values()]
            needs += [f"the {name} of cells" for name in others]
            needs += [f"the method {one!r}" for one in methods if not is_known(one)]
        elif kind == "sheet_fuzzy":
            kinds = [one["type"] for one in rule["rules"]]
            needs += [f"the comparison {one!r}" for one in kinds if one not in _FUZZY]
            for one in rule["rules"]:
                try:
                    _list_cells(one["range"])
                except ValueError as error:
                    needs.append(f"{error}")
        elif kind not in ("sheet_name", "sheet_data"):
            needs.append(f"the rule {kind!r} of compare_table")
    return needs


def compare_table(result: Any, expected: Any = None, **options: Any) -> float:
    """Say whether a workbook is, by every rule of `rules`, as another one or as a rule says.

    The values count, not what was calculated from what and not how it looks: a file whose formulas
    nobody has calculated has no values there.
    """
    try:
        mine = workbook(result)
        theirs = [] if expected is None else workbook(expected)
    except (NoWorkbook, TypeError):
        return 0.0
    return float(all(_is_met(rule, mine, theirs) for rule in options["rules"]))


def _is_met(
    rule: Mapping[str, Any], mine: Sequence[WorkbookSheet], theirs: Sequence[WorkbookSheet]
) -> bool:
    match rule["type"]:
        case "sheet_name":
            return [one.name for one in mine] == [one.name for one in theirs]
        case "sheet_data" | "sheet_fuzzy" as kind:
            one = _find_sheet(rule["sheet_idx0"], mine, theirs)
            two = _find_sheet(rule["sheet_idx1"], mine, theirs)
            if one is None or two is None:
                return False
            if kind == "sheet_fuzzy":
                return all(_are_alike(each, one, two) for each in rule["rules"])
            digits = int(rule.get("precision", _PRECISION))
            return _round_values(one, digits) == _round_values(two, digits)
        case _:
            one = _find_sheet(rule["sheet_idx"], mine, theirs)
            if one is None:
                return False
            value = one.cells.get(place(rule["coordinate"]))
            return all(is_ruled(value, each) for each in rule["props"].values())


def _find_sheet(
    named: int | str, mine: Sequence[WorkbookSheet], theirs: Sequence[WorkbookSheet]
) -> WorkbookSheet | None:
    """Return a sheet by its number, or as `RI0` and `RNname` of the result, `EI0` and `ENname`."""
    if isinstance(named, int):
        named = f"RI{named}"
    book = mine if named[0] == "R" else theirs
    if named[1] == "N":
        return next((one for one in book if one.name == named[2:]), None)
    number = int(named[2:])
    return book[number] if number < len(book) else None


def _round_values(sheet: WorkbookSheet, digits: int) -> dict[tuple[int, int], Value]:
    return {
        at: round(value, digits) if isinstance(value, float) else value
        for at, value in sheet.cells.items()
    }


def _are_alike(rule: Mapping[str, Any], one: WorkbookSheet, two: WorkbookSheet) -> bool:
    for name in _list_cells(rule["range"]):
        mine, theirs = _clean(one.cells.get(name), rule), _clean(two.cells.get(name), rule)
        match rule["type"]:
            case "includes":
                fits = theirs in mine
            case "included_by":
                fits = mine in theirs
            case "fuzzy_match":
                fits = 100 * ratio(mine, theirs) >= rule.get("threshold", 85.0)
            case _:
                fits = mine == theirs
        if not fits:
            return False
    return True


def _list_cells(ranges: Sequence[str]) -> list[tuple[int, int]]:
    cells: list[tuple[int, int]] = []
    for one in ranges:
        first, _, last = one.partition(":")
        (top, left_column), (bottom, right) = place(first), place(last or first)
        rows, columns = range(top, bottom + 1), range(left_column, right + 1)
        if len(rows) * len(columns) > _CELLS_MAX:
            raise ValueError(f"the range {one} has more than {_CELLS_MAX} cells")
        cells += [(row, column) for row in rows for column in columns]
    return cells


def _clean(value: Value | None, rule: Mapping[str, Any]) -> str:
    text = format_value(value)
    for old, new in rule.get("normalization", ()):
        text = text.replace(old, new)
    text = text.lstrip(rule["trim_leadings"]) if rule.get("trim_leadings") else text
    text = text.rstrip(rule["trim_trailings"]) if rule.get("trim_trailings") else text
    text = "".join(one for one in text if one not in rule.get("ignore_chars", ""))
    return text.lower() if rule.get("ignore_case") else text
