"""What checkers of OSWorld's format say of files and texts, by golden numbers worked out by hand.

Mutants seen caught, each applied to a copy of the tree: metrics of a list not put together by
`conj`; a zero that `and` forgets; `exclude` ignored; blanks not ignored; numbers of a table not
rounded; a sheet by name looked for in the other book; a workbook with entities read.
"""

import io
import zipfile
from collections.abc import Callable
from difflib import SequenceMatcher
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_envs.gui.markup import MAX_ELEMENTS
from agentrl_envs.gui.osworld.metrics import MAX_CHARACTERS, METRICS
from agentrl_envs.gui.osworld.pack import combine_scores
from agentrl_envs.gui.osworld.rules import is_ruled, ratio
from agentrl_envs.gui.osworld.tables import (
    MAX_BYTES,
    MAX_PARTS,
    MAX_SHEETS,
    NoWorkbook,
    place,
    workbook,
)
from tests.support.xlsx_files import SHEET, archive, xlsx

BOOK = xlsx(One={"A1": "a", "B1": 1.00004, "C3": "x (y)"}, Two={"A1": 5.0})
SAME = xlsx(One={"A1": "a", "B1": 1.0, "C3": "xy"}, Two={"A1": 6.0})


def data_rule(one: int | str, two: int | str, **more: Any) -> dict[str, Any]:
    return {"rules": [{"type": "sheet_data", "sheet_idx0": one, "sheet_idx1": two, **more}]}


def cell_rule(name: str, method: str, ref: Any) -> dict[str, Any]:
    props = {"value": {"method": method, "ref": ref}}
    return {"rules": [{"type": "check_cell", "sheet_idx": 0, "coordinate": name, "props": props}]}


def fuzzy_rule(name: str, kind: str, **more: Any) -> dict[str, Any]:
    inner = {"range": [name], "type": kind, **more}
    rule = {"type": "sheet_fuzzy", "sheet_idx0": 0, "sheet_idx1": "EI0", "rules": [inner]}
    return {"rules": [rule]}


E = {"expected": "abc"}
GOLDEN: list[tuple[str, Any, Any, dict[str, Any], float]] = [
    ("exact_match", "abc", E, {}, 1.0),
    ("exact_match", "abc\n", E, {}, 0.0),
    ("match_in_list", "b", {"expected": ["a", "b"]}, {}, 1.0),
    ("match_in_list", "c", {"expected": ["a", "b"]}, {}, 0.0),
    ("is_in_list", ["abc", "d"], E, {}, 1.0),
    ("is_in_list", ["ab"], E, {}, 0.0),
    ("is_in_list", None, E, {}, 0.0),
    ("literal_match", "ABC", "abc", {"ignore_case": True}, 1.0),
    ("literal_match", "ABC", "abc", {}, 0.0),
    ("literal_match", ["1", "2"], [1, 2], {"type": "list"}, 1.0),
    ("literal_match", ["1"], [1, 2], {"type": "list"}, 0.0),
    ("literal_match", "12", ["1", "2"], {"type": "list"}, 0.0),
    ("check_include_exclude", "one two", {"include": ["one", "two"], "exclude": ["three"]},
     {}, 1.0),
    ("check_include_exclude", "one two", {"include": ["one"], "exclude": ["two"]}, {}, 0.0),
    ("check_include_exclude", "one", {"include": ["one", "two"]}, {}, 0.0),
    ("check_include_exclude", None, {}, {}, 0.0),
    ("fuzzy_match", "abcd", {"expected": "abxd"}, {}, 0.75),
    ("fuzzy_match", "", {"expected": "x"}, {}, 0.0),
    ("diff_text_file", b"1\n2\n3\n4\n", b"1\n2\n3\nx\n", {}, 0.75),
    ("diff_text_file", None, b"", {}, 0.0),
    ("compare_text_file", b"a b\r\n", b"a b\n", {}, 1.0),
    ("compare_text_file", b" a\tb \n\n", b"a b", {"ignore_blanks": True}, 1.0),
    ("compare_text_file", b" a\tb \n\n", b"a b", {}, 0.0),
    ("compare_text_file", b"A", b"a", {"ignore_case": True}, 1.0),
    ("compare_text_file", b"\xff", b"\xff", {}, 0.0),
    ("compare_csv", b"a,b \nc", b"a,b\nc\n", {"strict": False}, 1.0),
    ("compare_csv", b"a,b \nc", b"a,b\nc\n", {}, 0.0),
    ("compare_csv", b"A\n", b"a\n", {"ignore_case": True}, 1.0),
    ("compare_config", b"abc", E, {}, 1.0),
    ("compare_answer", "abc ", E, {}, 0.0),
    ("file_contains", b"one two", {"expected": ["one", "two"]}, {}, 1.0),
    ("file_contains", b"one", {"expected": ["one", "two"]}, {}, 0.0),
    ("check_list", b"x1\ny2\n", {"expect": ["x\\d", "^y"], "unexpect": ["z"]}, {}, 1.0),
    ("check_list", b"x1\ny2\n", {"expect": ["x", "z"]}, {}, 0.0),
    ("check_list", b"x1\ny2\n", {"unexpect": ["^y"]}, {}, 0.0),
    ("check_csv", b"a,b\n1,2\n3,4\n", {"expect": [{"a": "3", "b": "4"}]}, {}, 1.0),
    ("check_csv", b"a,b\n1,2\n3,4\n", {"expect": [{"a": "1", "b": "4"}]}, {}, 0.0),
    ("check_csv", b"a,b\n1,2\n", {"unexpect": [{"a": "1"}]}, {}, 0.0),
    ("check_json", b'{"a": [1, {"b": "x"}]}',
     {"expect": [{"key": ["a", 1, "b"], "method": "eq", "ref": "x"}]}, {}, 1.0),
    ("check_json", b'{"a": 2}', {"expect": [{"key": ["b"], "method": "ne", "ref": 1}]}, {}, 0.0),
    ("check_json", b'{"a": 2}', {"unexpect": [{"key": ["a"], "method": "gt", "ref": 1}]}, {}, 0.0),
    ("check_json", b"[" * 10**5, {}, {}, 0.0),
    ("check_json_settings", b'{"a": 1, "b": 2}', {"expected": {"a": 1}}, {}, 1.0),
    ("check_json_settings", b'{"a": 2}', {"expected": {"a": 1}}, {}, 0.0),
    ("check_json_settings", b"[]", {"expected": {}}, {}, 0.0),
    ("check_direct_json_object", "{'a': 'x', 'b': 1}", {"expected": {"a": "x"}}, {}, 1.0),
    ("check_direct_json_object", {"a": "xyz"}, {"expected": {"a": "y"}}, {}, 0.0),
    ("check_direct_json_object", {"a": "xyz"}, {"expected": {"a": "y"}, "expect_in_result": True},
     {}, 1.0),
    ("check_direct_json_object", {"a": ["p"]},
     {"expected": {"a": ["q", "p"]}, "expect_in_result": True}, {}, 1.0),
    ("check_moved_jpgs", {"children": [{"name": "b"}, {"name": "a"}]}, {"expected": ["a", "b"]},
     {}, 1.0),
    ("check_moved_jpgs", {"children": [{"name": "a"}]}, {"expected": ["a", "b"]}, {}, 0.0),
    ("is_in_vm_clickboard", {"expected": ["a", "c"]}, "abc", {}, 1.0),
    ("is_in_vm_clickboard", {"expected": "d"}, "abc", {}, 0.0),
    ("compare_table", BOOK, SAME, {"rules": [{"type": "sheet_name"}]}, 1.0),
    ("compare_table", BOOK, xlsx(One={}), {"rules": [{"type": "sheet_name"}]}, 0.0),
    ("compare_table", BOOK, SAME, data_rule(0, "EI0"), 0.0),
    ("compare_table", xlsx(S={"A1": 1.00004}), xlsx(S={"A1": 1.0}), data_rule(0, "EI0"), 1.0),
    ("compare_table", xlsx(S={"A1": 1.00006}), xlsx(S={"A1": 1.0}), data_rule(0, "EI0"), 0.0),
    ("compare_table", xlsx(S={"A1": 1.04}), xlsx(S={"A1": 1.0}),
     data_rule("RNS", "ENS", precision=1), 1.0),
    ("compare_table", BOOK, SAME, data_rule("RNTwo", "ENTwo"), 0.0),
    ("compare_table", BOOK, SAME, data_rule("EN9", "EN9"), 0.0),
    ("compare_table", BOOK, SAME, data_rule(7, 7), 0.0),
    ("compare_table", BOOK, None, cell_rule("C3", "re.I", "X \\("), 1.0),
    ("compare_table", BOOK, None, cell_rule("C3", "eq", "x"), 0.0),
    ("compare_table", BOOK, SAME, fuzzy_rule("A1:B1", "exact_match", trim_trailings="04."), 1.0),
    ("compare_table", BOOK, SAME, fuzzy_rule("A1:B1", "exact_match"), 0.0),
    ("compare_table", BOOK, SAME, fuzzy_rule("C3", "exact_match", ignore_chars=" ()"), 1.0),
    ("compare_table", BOOK, SAME, fuzzy_rule("C3", "exact_match"), 0.0),
    ("compare_table", BOOK, SAME, fuzzy_rule("C3", "fuzzy_match", threshold=57), 1.0),
    ("compare_table", BOOK, SAME, fuzzy_rule("C3", "fuzzy_match", threshold=58), 0.0),
    ("compare_table", BOOK, SAME,
     fuzzy_rule("C3", "included_by", normalization=[["x (y)", "x"]]), 1.0),
    ("compare_table", b"no workbook", SAME, {"rules": []}, 0.0),
    ("compare_table", None, None, {"rules": []}, 0.0),
]  # fmt: skip


@pytest.mark.parametrize(("name", "result", "expected", "options", "score"), GOLDEN)
def test_metrics(
    name: str, result: Any, expected: Any, options: dict[str, Any], score: float
) -> None:
    arguments = [result] if expected is None else [result, expected]
    assert METRICS[name](*arguments, **options) == pytest.approx(score)


def test_every_metric_has_a_golden_number() -> None:
    assert {name for name, *_ in GOLDEN} == METRICS.keys()


@given(st.text(alphabet="abc", max_size=12), st.text(alphabet="abc", max_size=12))
def test_how_like_texts_are_agrees_with_the_table_of_subsequences(one: str, two: str) -> None:
    table = [[0] * (len(two) + 1) for _ in range(len(one) + 1)]
    for i, x in enumerate(one):
        for j, y in enumerate(two):
            table[i + 1][j + 1] = (
                table[i][j] + 1 if x == y else max(table[i][j + 1], table[i + 1][j])
            )
    whole = len(one) + len(two)
    assert ratio(one, two) == (2 * table[-1][-1] / whole if whole else 1.0)
    assert ratio(one, two) >= SequenceMatcher(a=one, b=two, autojunk=False).ratio()


@pytest.mark.parametrize(
    ("value", "method", "ref", "holds"),
    [
        (3, "le", 3, True), (3, "lt", 3, False), ("3", "lt", 4, False),
        (3.2, "approx:0.25", 3, True), (3.3, "approx:0.25", 3, False),
        ("x", "approx:1", 3, False), (0, "range.te", [0, 2], False),
        (2, "range.te", [0, 2], True), ("a,b", "str_list_eq", ["a", "b"], True),
        ("b,a", "str_list_eq", ["a", "b"], False), ("b,a", "str_set_eq", ["a", "b"], True),
        ("Xy", "re.I", "^x", True), ("Xy", "re", "^x", False), (None, "re", "", False),
    ],
)  # fmt: skip
def test_rules(value: Any, method: str, ref: Any, holds: bool) -> None:
    assert is_ruled(value, {"method": method, "ref": ref}) is holds


def test_several_metrics_come_to_one_number() -> None:
    assert combine_scores([1.0, 0.5], "and") == 0.75
    assert combine_scores([1.0, 0.0, 1.0], "and") == 0.0
    assert combine_scores([0.0, 0.5], "or") == 0.5
    assert combine_scores([0.5, 1.0], "or") == 1.0


def repacked(data: bytes, change: Callable[[bytes], bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(made, "w") as new:
        for name in old.namelist():
            new.writestr(name, change(old.read(name)))
    return made.getvalue()


CHANGES: list[Callable[[bytes], bytes]] = [
    lambda data: b'<!DOCTYPE x [<!ENTITY a "b">]>' + data,
    lambda data: data + b" " * 2**25,
    lambda data: data.replace(b'r="A1"', b'r="1A"'),
    lambda data: data.replace(b"worksheets/", b"nowhere/"),
    lambda data: data[: len(data) // 2],
]


def test_a_workbook_is_read_within_bounds() -> None:
    (one, two) = workbook(BOOK)
    assert (one.name, one.cells) == ("One", {(1, 1): "a", (1, 2): 1.00004, (3, 3): "x (y)"})
    assert one.row(1) == ["a", 1.00004, None]
    assert two.cells == {(1, 1): 5.0}
    for change in CHANGES:
        with pytest.raises(NoWorkbook):
            workbook(repacked(BOOK, change))
    assert place("AB12") == (12, 28)


HUGE = (
    (archive(SHEET, sheets=MAX_SHEETS + 1), "sheets exceed"),
    (archive(SHEET, entries=MAX_PARTS), "too many for a workbook"),
    (archive(SHEET + b" " * MAX_BYTES), "exceed the limit"),
    (archive(b"<a>" * 200), "nested deeper"),
    (archive(b"<a>" + b"<b/>" * (2 * MAX_ELEMENTS) + b"</a>"), "elements"),
)


@pytest.mark.parametrize(("data", "says"), HUGE, ids=[says for _, says in HUGE])
def test_a_small_file_does_not_become_a_large_workbook(data: bytes, says: str) -> None:
    assert len(data) < 2**20
    with pytest.raises(NoWorkbook, match=says):
        workbook(data)
    assert METRICS["compare_table"](data, data, rules=[]) == 0


def test_a_part_is_read_once_however_often_it_is_named() -> None:
    sheets = workbook(archive(SHEET + b" " * (MAX_BYTES // 2), sheets=MAX_SHEETS))
    assert len(sheets) == MAX_SHEETS


def test_texts_over_a_limit_are_like_nothing() -> None:
    text = "x\n" * (MAX_CHARACTERS // 2)
    assert METRICS["diff_text_file"](text.encode(), b"x\n" * 100) == 0
    assert METRICS["diff_text_file"](b"x\n" * 9, b"x\n" * 9) == 1
    assert METRICS["fuzzy_match"](text + "x", {"expected": "x"}) == 0
    # The rows are as long as the shorter text, whichever it is.
    assert 0 < METRICS["fuzzy_match"](text, {"expected": "x"}) < 1e-5
