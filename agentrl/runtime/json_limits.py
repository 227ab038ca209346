"""Limits on JSON that a policy, a program, a page or a peer wrote: checked where it becomes values.

A value that passes can be encoded again, copied, compared and rendered by everything behind: no
recursion error, no integer that Python refuses to write, no text that is not valid Unicode.
"""

import json
import re
from codecs import BOM_UTF8
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite
from typing import Any, NoReturn, cast


class JsonLimitError(ValueError):
    """A text is no JSON, or JSON beyond a limit; one sentence with the value and the rule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonLimits:
    """Limits on a JSON value. The defaults fit one message of a few pages."""

    text_bytes: int = 2**20
    """Of the text, in UTF-8."""
    depth: int = 64
    """Lists and objects around the innermost value, itself included where it is one."""
    values: int = 100_000
    """Numbers, texts, truth values, nulls, lists and objects; a key is none."""
    digits: int = 308
    """Of an integer. With 308 it is within the range of a double."""
    nul: bool = True
    """Whether a text may hold the character NUL, which no path and no program's argument can."""
    repeated_keys: bool = True
    """Whether an object may have a key twice, of which the last counts."""


DEFAULT_LIMITS = JsonLimits()

_MARKS = re.compile(r'[,\[{]|"[^"\\]*+(?:\\.[^"\\]*+)*+"?+', re.DOTALL)
"""Marks that precede a value, and whole texts, so that no mark within them counts."""


def read_json(text: str | bytes, limits: JsonLimits = DEFAULT_LIMITS) -> Any:
    """Return the value of a JSON text; bytes are UTF-8.

    The work is linear in the text, and nothing is read of a text that is too long. Raises
    `JsonLimitError`, and nothing else, for any text.
    """
    check_text_bytes(text, limits)
    is_unicode = False
    if isinstance(text, bytes):
        try:
            text = text.removeprefix(BOM_UTF8).decode()
            is_unicode = "\\u" not in text
        except UnicodeDecodeError as error:
            raise JsonLimitError(
                f"the text is not UTF-8 at byte {error.start}; write JSON in UTF-8"
            ) from None
    _check_marks(text, limits)
    value, end = parse_json(text, _skip_space(text, 0), limits)
    if (rest := _skip_space(text, end)) < len(text):
        raise JsonLimitError(
            f"broken JSON: text after the value, at character {rest}; write one JSON value"
        )
    if not (is_unicode and limits.nul and _is_surely_within(text, limits)):
        check_json(value, limits)
    return value


def _is_surely_within(text: str, limits: JsonLimits) -> bool:
    """Return whether any value of a text has few enough levels and values, by its marks alone."""
    openings = text.count("[") + text.count("{")
    return openings <= limits.depth and openings + text.count(",") < limits.values


def parse_json(text: str, start: int, limits: JsonLimits = DEFAULT_LIMITS) -> tuple[Any, int]:
    """Return the JSON value at `start`, unchecked, and its end; errors count from `start`."""

    try:
        return _find_decoder(limits).raw_decode(text, start)
    except JsonLimitError:
        raise
    except RecursionError:
        raise JsonLimitError(_too_deep(limits)) from None
    except json.JSONDecodeError as error:
        raise JsonLimitError(
            f"broken JSON: {error.msg} at character {error.pos - start}; write one JSON value"
        ) from None


@lru_cache(maxsize=32)
def _find_decoder(limits: JsonLimits) -> json.JSONDecoder:
    def parse_int(digits: str) -> int:
        # Before `int`, whose work is quadratic and which refuses more than 4,300 digits.
        if len(digits) > limits.digits + (digits[0] == "-"):
            _refuse_digits(limits)
        return int(digits)

    def build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) < len(pairs):
            _refuse_repetition([key for key, _ in pairs])
        return values

    return json.JSONDecoder(
        parse_int=parse_int,
        parse_float=_parse_float,
        parse_constant=_refuse_constant,
        object_pairs_hook=None if limits.repeated_keys else build_object,
    )


def _parse_float(digits: str) -> float:
    value = float(digits)
    if not isfinite(value):
        _refuse_constant(repr(value))
    return value


def check_text_bytes(text: str | bytes, limits: JsonLimits = DEFAULT_LIMITS) -> None:
    """Raise `JsonLimitError` for a text that is longer than the limit."""
    size = len(text)
    if size <= limits.text_bytes and isinstance(text, str) and not text.isascii():
        size = len(text.encode(errors="surrogatepass"))
    if size > limits.text_bytes:
        raise JsonLimitError(
            f"the JSON has {size} bytes, but the limit is {limits.text_bytes}; write less"
        )


def check_json(value: Any, limits: JsonLimits = DEFAULT_LIMITS) -> None:
    """Raise `JsonLimitError` unless a value is JSON within the limits; tuples count as lists."""
    level: list[Any] = [value]
    count, depth = 1, 0
    while level:
        inner: list[Any] = []
        for item in level:
            if isinstance(item, str):
                _check_text(item, limits)
            elif item is None or isinstance(item, bool):
                continue
            elif isinstance(item, int):
                _check_integer(item, limits)
            elif isinstance(item, float):
                if not isfinite(item):
                    _refuse_constant(repr(item))
            else:
                items = _items(item, limits)
                count += len(items)
                if count > limits.values:
                    raise JsonLimitError(_too_many(limits))
                if depth >= limits.depth:
                    raise JsonLimitError(_too_deep(limits))
                inner += items
        level, depth = inner, depth + 1


def _check_marks(text: str, limits: JsonLimits) -> None:
    """Raise `JsonLimitError` for a text with too many values, before they are made."""
    if text.count(",") < limits.values and text.count("[") + text.count("{") <= limits.values:
        return
    commas = openings = 0
    for mark in _MARKS.finditer(text):
        first = text[mark.start()]
        commas += first == ","
        openings += first in "[{"
        if commas >= limits.values or openings > limits.values:
            raise JsonLimitError(_too_many(limits))


def _items(item: Any, limits: JsonLimits) -> Sequence[Any]:
    """Return the values within a list or an object, its keys checked."""
    if isinstance(item, list | tuple):
        return cast("Sequence[Any]", item)
    if isinstance(item, Mapping):
        values = cast("Mapping[Any, Any]", item)
        if len(values) > limits.values:
            return range(limits.values + 1)
        for key in values:
            if not isinstance(key, str):
                raise JsonLimitError(
                    f"a key has type {type(key).__name__}, but JSON keys must be text; write it as "
                    "text"
                )
            _check_text(key, limits)
        return [*values.values()]
    raise JsonLimitError(
        f"a value has type {type(item).__name__}, which JSON does not support; use text, numbers, "
        "true, false, null, lists and objects"
    )


def _check_text(text: str, limits: JsonLimits) -> None:
    if not limits.nul and "\0" in text:
        raise JsonLimitError("a text in the JSON contains the character NUL; remove it")
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise JsonLimitError(
            f"a text in the JSON is not valid Unicode: it contains {text[error.start]!a}, half of "
            "a surrogate pair; write the character itself"
        ) from None


def _check_integer(value: int, limits: JsonLimits) -> None:
    # Ten to the power n has more than 3.3 n bits: short numbers need no power.
    if value.bit_length() > 3.3 * limits.digits and abs(value) >= 10**limits.digits:
        _refuse_digits(limits)


def _refuse_digits(limits: JsonLimits) -> NoReturn:
    raise JsonLimitError(
        f"a number in the JSON has more than {limits.digits} digits, the maximum; write it as text"
    )


def _refuse_constant(name: str) -> NoReturn:
    raise JsonLimitError(
        f"a number in the JSON is not finite ({name}), which JSON does not support; write a finite "
        "number or null"
    )


def _refuse_repetition(keys: Sequence[str]) -> NoReturn:
    last = {key: at for at, key in enumerate(keys)}
    key = next(key for at, key in enumerate(keys) if at < last[key])
    raise JsonLimitError(f"an object in the JSON has the key {key!r:.80} twice; write it once")


def _too_deep(limits: JsonLimits) -> str:
    return f"the JSON is nested more than {limits.depth} deep, the maximum; use fewer levels"


def _too_many(limits: JsonLimits) -> str:
    return f"the JSON has more than {limits.values} values, the maximum; write fewer"


def _skip_space(text: str, at: int) -> int:
    return len(text) - len(text[at:].lstrip(" \t\n\r"))
