"""Limits on JSON from outside: what passes can be written again, what does not is one sentence."""

import json
import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentrl.runtime.json_limits import JsonLimitError, JsonLimits, check_json, read_json

SMALL = JsonLimits(text_bytes=1_000, depth=3, values=10, digits=5, nul=False)

MARKS = st.text(st.sampled_from('[]{}",:0123456789.eE-+ \\udNa\u00e9\ud800'))
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec=None)), inner),
    max_leaves=20,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[[[1]]]", [[[1]]]),
        ('{"a": {"b": [-99999, 99999]}}', {"a": {"b": [-99999, 99999]}}),
        ("[1,2,3,4,5,6,7,8,9]", [*range(1, 10)]),
        (" \n7 ", 7),
        ('"\\ud83d\\ude00"', "\U0001f600"),
        (b"\xef\xbb\xbf[]", []),
        ("1e308", 1e308),
        ('"' + "a" * 998 + '"', "a" * 998),
        ('[",,,,,,,,,,", "[{[{[{[{[{[{\\"[,,"]', [",,,,,,,,,,", '[{[{[{[{[{[{"[,,']),
        ("[[],[],[],[],[],[],[],[],[]]", [[], [], [], [], [], [], [], [], []]),
    ],
)
def test_values_at_the_limits_pass(text: str | bytes, value: Any) -> None:
    assert read_json(text, SMALL) == value
    check_json(value, SMALL)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("[[[[]]]]", "nested more than 3 deep"),
        ('{"a":{"a":{"a":{}}}}', "nested more than 3 deep"),
        ("[1,2,3,4,5,6,7,8,9,10]", "more than 10 values"),
        ("100000", "more than 5 digits"),
        ("-100000", "more than 5 digits"),
        ("NaN", "not finite (NaN)"),
        ("[1e999]", "not finite (inf)"),
        ('"\\ud800"', "not valid Unicode: it contains '\\ud800'"),
        ('{"\\udc00": 1}', "not valid Unicode"),
        ('"a\\u0000"', "NUL"),
        ('{"\\u0000": 1}', "NUL"),
        ('"' + "a" * 999 + '"', "1001 bytes, but the limit is 1000"),
        ('"' + "ä" * 500 + '"', "1002 bytes, but the limit is 1000"),
        (b'"\xff"', "not UTF-8 at byte 1"),
        ("", "broken JSON: Expecting value at character 0"),
        ("[1, ", "broken JSON"),
        ("1 2", "text after the value, at character 2"),
    ],
)
def test_a_value_beyond_a_limit_is_one_sentence(text: str | bytes, wrong: str) -> None:
    with pytest.raises(JsonLimitError) as refused:
        read_json(text, SMALL)
    assert wrong in str(refused.value)
    assert ";" in str(refused.value), "no way out is named"


@pytest.mark.parametrize(
    "text",
    [
        "[" * 700 + "]" * 700,
        "[" * 500_000,
        '{"a":' * 200_000,
        "9" * 5_000,
        "-" + "9" * 1_000_000,
        "[" + "0," * 500_000 + "0]",
        "[" + "{}," * 300_000 + "{}]",
        "\ud800",
    ],
    ids=lambda text: text[:8],
)
def test_what_python_reads_badly_is_refused_by_the_defaults(text: str) -> None:
    with pytest.raises(JsonLimitError):
        read_json(text)
    with pytest.raises(JsonLimitError):
        read_json(text.encode(errors="surrogatepass"))


def test_a_key_that_an_object_has_twice_is_refused_where_asked() -> None:
    text = '{"a": [{"b": 1, "c": 2, "b": 1}]}'
    assert read_json(text) == {"a": [{"b": 1, "c": 2}]}
    with pytest.raises(JsonLimitError, match="an object in the JSON has the key 'b' twice; write"):
        read_json(text, JsonLimits(repeated_keys=False))


def test_values_that_are_no_json_are_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    wide: Any = 0
    for _ in range(60):
        wide = [wide] * 10
    for value in (endless, wide, {1: 2}, {1, 2}, b"", math.nan, 10**400, {"a": object()}):
        with pytest.raises(JsonLimitError):
            check_json(value)


@given(MARKS | MARKS.map(lambda text: text.encode(errors="surrogatepass")) | st.binary())
@example("[1e400]")
@example(b"[1e400]")
@example(b'"\\ud800"')
@example(b"[" * 65 + b"]" * 65)
@example(b"[" + b"0," * 100_000 + b"0]")
def test_reading_raises_nothing_else(text: str | bytes) -> None:
    try:
        value = read_json(text)
    except JsonLimitError:
        return
    check_json(value)


@given(JSON_VALUES)
def test_what_passes_can_be_written_and_read_again(value: Any) -> None:
    try:
        check_json(value)
    except JsonLimitError:
        return
    text = json.dumps(value, allow_nan=False, ensure_ascii=False)
    assert read_json(text.encode()) == value
    assert read_json(text) == value
