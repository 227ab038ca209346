"""Settings of data sets and judges, checked before anything is read: a rule per key."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from math import isfinite
from typing import Any, cast

from agentrl.errors import ConfigError
from agentrl.task import SPLITS


@dataclass(frozen=True, slots=True)
class SettingRule:
    """Values that a setting may have."""

    accepts: Callable[[Any], bool]
    words: str
    """Words for the rule, with an example."""


def is_text(value: object) -> bool:
    """Return whether this is a text with more than space in it."""
    return isinstance(value, str) and bool(value.strip())


def is_number(value: object, *, above: float = -float("inf")) -> bool:
    """Return whether this is a finite number, no truth value, above another."""
    is_kind = isinstance(value, int | float) and not isinstance(value, bool)
    return is_kind and isfinite(cast("float", value)) and cast("float", value) > above


def is_count(value: object, *, least: int = 1) -> bool:
    """Return whether this is a whole number of at least so many."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def is_place(value: object) -> bool:
    """Return whether this is a text, or one by split."""
    if not isinstance(value, Mapping):
        return is_text(value)
    texts = cast("Mapping[object, object]", value)
    return set(texts) == set(SPLITS) and all(map(is_text, texts.values()))


def is_scale(value: object) -> bool:
    """Return whether these are two numbers, the lower one first."""
    if not isinstance(value, list | tuple) or len(cast("Sequence[Any]", value)) != 2:
        return False
    low, high = cast("Sequence[Any]", value)
    return is_number(low) and is_number(high) and low < high


def _or_none(accepts: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or accepts(value)


def _is_tool_list(value: object) -> bool:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        return False
    tools = cast("Sequence[object]", value)
    return not any(isinstance(tool, int | float | list | None) for tool in tools)


_COLUMN = SettingRule(is_text, "the name of a column")
_SECONDS = SettingRule(lambda value: is_number(value, above=0), "a number above 0, such as 30")
_COUNT = SettingRule(is_count, "a whole number of at least 1, such as 8")
_BUDGET = SettingRule(_or_none(is_count), "a whole number of at least 1, or left out for no end")

DATASET_RULES: Mapping[str, SettingRule] = {
    "path": SettingRule(
        is_place,
        "the path of a file, a name of the hub, or one for each split: {train: ..., heldout: ...}",
    ),
    "prompt": SettingRule(
        is_text, 'the name of a column, or a template such as "{context} {question}"'
    ),
    "answer": SettingRule(
        _or_none(is_text), "the name of a column, or left out for the column `answer`"
    ),
    "reward": SettingRule(
        _or_none(lambda value: isinstance(value, str | Mapping | Sequence) or callable(value)),
        "exact, math, judge, module:function, trl:module:function, or a list of those",
    ),
    "tools": SettingRule(_is_tool_list, "a list, such as [my_package.tools:search]"),
    "subset": SettingRule(
        _or_none(is_text), "the name of a configuration on the hub, or left out for none"
    ),
    "split": SettingRule(
        _or_none(is_place),
        "the name of a split, both names, as {train: ..., heldout: ...}, or left out for all rows",
    ),
    "split_column": _COLUMN,
    "heldout_fraction": SettingRule(
        lambda value: is_number(value, above=0) and value < 1,
        "a number between 0 and 1, such as 0.1",
    ),
    "system": SettingRule(lambda value: isinstance(value, str), "a text, empty for no message"),
    "gold": SettingRule(
        _or_none(lambda value: is_text(value) or callable(value)),
        "module:function of a gold player, or left out",
    ),
    "max_turns": SettingRule(
        _or_none(is_count), "a whole number of at least 1, or left out for no end"
    ),
    "tool_timeout_s": _SECONDS,
    "reuse": SettingRule(lambda value: isinstance(value, bool), "true or false"),
}
"""Rules of `DatasetEnv` and `TrlEnv`."""

JUDGE_RULES: Mapping[str, SettingRule] = {
    "prompt": SettingRule(is_text, "the path of a text file"),
    "url": SettingRule(is_text, "an address up to the version: http://localhost:8000/v1"),
    "model": SettingRule(is_text, "the name of a model that the endpoint serves"),
    "key_variable": SettingRule(is_text, "the name of a variable, such as OPENAI_API_KEY"),
    "scale": SettingRule(is_scale, "two numbers, the lowest and the highest score, as [0, 10]"),
    "max_tokens": _COUNT,
    "temperature": SettingRule(
        lambda value: is_number(value) and value >= 0, "a number of at least 0, such as 0"
    ),
    "deadline_s": _SECONDS,
    "budget_calls": _BUDGET,
    "budget_tokens": _BUDGET,
    "cache": SettingRule(_or_none(is_text), "the path of a folder, or left out to keep nothing"),
    "concurrency": _COUNT,
    "retries": SettingRule(
        lambda value: is_count(value, least=0), "a whole number of at least 0, such as 3"
    ),
}
"""Rules of a judge."""


def check_settings(
    settings: Mapping[str, Any], rules: Mapping[str, SettingRule], *, of: str
) -> None:
    """Raise `ConfigError` for a setting whose value breaks its rule; others are not looked at."""
    for key, rule in rules.items():
        if key in settings and not rule.accepts(settings[key]):
            raise ConfigError(f"{key} of {of} is {settings[key]!r:.80}; it must be {rule.words}")


def find_key_fault(given: Mapping[str, Any], known: Sequence[str]) -> str:
    """Return the fault of the first unknown key, or an empty string."""
    for key in given:
        if key not in known:
            near = get_close_matches(str(key), known, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            return f"has the unknown key {key!r}; {hint}its keys are {', '.join(known)}"
    return ""
