"""OSWorld's metrics that need nothing but files and texts, as pure functions from 0 to 1.

A file is its bytes, None where there is none. What an agent left is never a reason to raise: where
it cannot be read, or is larger than what is compared, the metric is 0. One takes a second at most:
where a loop runs, it is called in a thread.
"""

import csv
import json
import re
from collections.abc import Callable, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import pairwise
from typing import Any, Final

from agentrl_envs.gui.osworld.books import compare_table
from agentrl_envs.gui.osworld.rules import is_ruled, ratio

Metric = Callable[..., float]
"""Called with the result, what is expected where a task says so, and the task's options."""
MAX_CHARACTERS: Final = 2**20
"""Of a text that is compared."""
_MAX_PAIRS = 4 * 2**20
"""Of lines that are compared with each other."""
_MISSING = object()


def text_of(result: object) -> str | None:
    """Return a result as text: a file's, or what a command said; None for what is neither, and
    for one over the limit."""
    if isinstance(result, str | bytes) and len(result) > MAX_CHARACTERS:
        return None
    if isinstance(result, bytes):
        try:
            # Line ends are one sign, as they are for whoever opens a file as text.
            return "\n".join(re.split(r"\r\n|\r|\n", result.decode()))
        except UnicodeDecodeError:
            return None
    return result if isinstance(result, str) else None


def _parse_json(result: object) -> Any:
    text = text_of(result)
    try:
        return _MISSING if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return _MISSING


def exact_match(result: Any, rules: Mapping[str, Any]) -> float:
    """Say whether a result is exactly `expected`."""
    return float(result == rules["expected"])


def match_in_list(result: Any, rules: Mapping[str, Any]) -> float:
    """Say whether a result is one of `expected`."""
    return float(result in rules["expected"])


def is_in_list(result: Any, rules: Mapping[str, Any]) -> float:
    """Say whether `expected` is in the list, or the text, that came out."""
    return float(isinstance(result, str | Sequence) and rules["expected"] in result)


def literal_match(result: Any, expected: Any, **options: Any) -> float:
    """Say whether a text or a list of texts is as expected; options `type` and `ignore_case`."""
    ignores = bool(options.get("ignore_case", False))
    if options.get("type", "str") == "list":
        if not (isinstance(result, list | tuple) and isinstance(expected, list | tuple)):
            return 0.0
        return float(
            [_fold_case(x, ignores) for x in result] == [_fold_case(x, ignores) for x in expected]
        )
    return float(_fold_case(result, ignores) == _fold_case(expected, ignores))


def _fold_case(one: Any, ignores: bool) -> str:
    return str(one).lower() if ignores else str(one)


def check_include_exclude(result: Any, rules: Mapping[str, Any]) -> float:
    """Say whether a text has all of `include` in it and nothing of `exclude`."""
    text = text_of(result)
    if text is None:
        return 0.0
    has = all(part in text for part in rules.get("include", ()))
    return float(has and not any(part in text for part in rules.get("exclude", ())))


def fuzzy_match(result: Any, rules: Mapping[str, Any]) -> float:
    """Return the similarity of a text to `expected`."""
    text = text_of(result)
    return 0.0 if text is None else ratio(text, str(rules["expected"]))


def diff_text_file(result: Any, expected: Any) -> float:
    """Return the similarity of two files, by lines."""
    mine, theirs = text_of(result), text_of(expected)
    if mine is None or theirs is None:
        return 0.0
    lines = mine.splitlines(), theirs.splitlines()
    if len(lines[0]) * len(lines[1]) > _MAX_PAIRS:
        return 0.0
    return SequenceMatcher(a=lines[0], b=lines[1]).ratio()


def compare_text_file(result: Any, expected: Any, **options: Any) -> float:
    """Say whether two files are the same; options `ignore_blanks` and `ignore_case`."""
    mine, theirs = text_of(result), text_of(expected)
    if mine is None or theirs is None:
        return 0.0
    both = [mine, theirs]
    if options.get("ignore_blanks"):
        both = [" ".join(text.split()) for text in both]
    if options.get("ignore_case"):
        both = [text.lower() for text in both]
    return float(both[0] == both[1])


def compare_csv(result: Any, expected: Any, **options: Any) -> float:
    """Say whether the lines of two files are the same; options `strict` and `ignore_case`."""
    mine, theirs = text_of(result), text_of(expected)
    if mine is None or theirs is None:
        return 0.0
    both = [mine.splitlines(), theirs.splitlines()]
    if not options.get("strict", True):
        both = [[line.strip() for line in lines] for lines in both]
    if options.get("ignore_case"):
        both = [[line.lower() for line in lines] for lines in both]
    return float(both[0] == both[1])


def compare_config(result: Any, rules: Mapping[str, Any]) -> float:
    """Say whether a file is exactly `expected`."""
    return float(text_of(result) == rules["expected"])


def file_contains(result: Any, rules: Mapping[str, Any]) -> float:
    """Say whether a file has all of `expected` in it."""
    text = text_of(result)
    return float(text is not None and all(part in text for part in rules["expected"]))


def check_list(result: Any, rules: Mapping[str, Any]) -> float:
    """Say whether every pattern of `expect` is in some line, and none of `unexpect` in any."""
    text = text_of(result)
    if text is None:
        return 0.0
    lines = text.splitlines(keepends=True)
    return _check_each(rules, lambda pattern: any(re.search(pattern, line) for line in lines))


def check_csv(result: Any, rules: Mapping[str, Any]) -> float:
    """Say whether rows with the fields of every `expect` are there, and none of an `unexpect`."""
    text = text_of(result)
    if text is None:
        return 0.0
    try:
        rows = [*csv.DictReader(text.splitlines())]
    except csv.Error:
        return 0.0
    return _check_each(
        rules, lambda fields: any(all(row.get(k) == fields[k] for k in fields) for row in rows)
    )


def _check_each(rules: Mapping[str, Any], holds: Callable[[Any], bool]) -> float:
    expectations, unwanted = rules.get("expect", ()), rules.get("unexpect", ())
    return float(all(map(holds, expectations)) and not any(map(holds, unwanted)))


def check_json(result: Any, rules: Mapping[str, Any]) -> float:
    """Say whether what stands at the keys is as every rule of `expect`, and as no `unexpect`."""
    data = _parse_json(result)
    if data is _MISSING:
        return 0.0
    for rule in rules.get("expect", ()):
        value = _find_value(data, rule["key"])
        if value is _MISSING or not is_ruled(value, rule):
            return 0.0
    for rule in rules.get("unexpect", ()):
        value = _find_value(data, rule["key"])
        if is_ruled(None if value is _MISSING else value, rule):
            return 0.0
    return 1.0


def _find_value(data: Any, keys: Sequence[Any]) -> Any:
    for key in keys:
        try:
            data = data[key]
        except (KeyError, IndexError, TypeError):
            return _MISSING
    return data


def check_json_settings(result: Any, rules: Mapping[str, Any]) -> float:
    """Say whether a file of settings has those of `expected`."""
    data, expected = _parse_json(result), rules["expected"]
    if not isinstance(data, dict):
        return 0.0
    return float(all(_find_value(data, [name]) == value for name, value in expected.items()))


def check_direct_json_object(result: Any, rules: Mapping[str, Any]) -> float:
    """Say whether an object has what `expected` has; `expect_in_result`: has it within."""
    if isinstance(result, str):
        result = _parse_json(result.strip().replace("'", '"'))
    if not isinstance(result, Mapping):
        return 0.0
    within = rules.get("expect_in_result", False)
    for key, target in rules["expected"].items():
        value: Any = result.get(key)
        if not within:
            fits = value == target
        elif isinstance(target, list):
            fits = isinstance(value, list) and any(one in value for one in target)
        else:
            fits = isinstance(target, str) and isinstance(value, str) and target in value
        if not fits:
            return 0.0
    return 1.0


def check_moved_jpgs(result: Any, rules: Mapping[str, Any]) -> float:
    """Say whether a directory, as it was listed, holds exactly `expected`."""
    if not isinstance(result, Mapping):
        return 0.0
    names = sorted(one["name"] for one in result["children"])
    same = any(one == two for one, two in pairwise(names))
    return float(not same and names == sorted(set(rules["expected"])))


def is_in_vm_clickboard(rules: Mapping[str, Any], result: Any) -> float:
    """Say whether what came out has `expected`, one or all of a list, in it."""
    text = text_of(result)
    target = rules["expected"]
    parts = target if isinstance(target, list) else [target]
    return float(text is not None and all(part in text for part in parts))


METRICS: Mapping[str, Metric] = {
    one.__name__: one
    for one in (
        *(exact_match, match_in_list, is_in_list, literal_match, check_include_exclude),
        *(fuzzy_match, diff_text_file, compare_text_file, compare_csv, compare_config),
        *(file_contains, check_list, check_csv, check_json, check_json_settings),
        *(check_direct_json_object, check_moved_jpgs, is_in_vm_clickboard, compare_table),
    )
} | {"compare_answer": compare_config}
"""By the names that task files use."""
