"""Overrides: `a.b=c` from a command line, or a mapping from Python, laid over a file."""

import copy
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, cast

from agentrl.config.document import ConfigDocument, ConfigProblem, KeyPath, parse_value
from agentrl.config.schema import ConfigKey, lookup, plain, takes
from agentrl.config.section import ConfigSection
from agentrl.errors import ConfigError

Overrides = Sequence[str] | Mapping[str, Any]


def merge(base: ConfigDocument, top: ConfigDocument, root: type[ConfigSection]) -> ConfigDocument:
    """Lay one document over another: mappings key by key, anything else as a whole.

    A section that names another method than the one below it replaces it, so that no key of the
    old method stays behind.
    """
    values = copy.deepcopy(base.values)
    _merge_into(values, top.values, (), root)
    return ConfigDocument(values, {**base.origins, **top.origins}, (*base.problems, *top.problems))


def apply(
    document: ConfigDocument, overrides: Overrides, root: type[ConfigSection]
) -> ConfigDocument:
    """Lay overrides over a document in their order; the last one wins."""
    values, origins = copy.deepcopy(document.values), dict(document.origins)
    problems = list(document.problems)
    for key, value, origin in _parse_overrides(overrides, root):
        path = tuple(key.split("."))
        if not all(path):
            problems.append(ConfigProblem(origin, f"{key!r} has an empty part; write a.b=c"))
            continue
        section = values
        for depth, part in enumerate(path[:-1]):
            section = _enter(section, part, origins, path[: depth + 1])
        if path[-1] == "name" and section.get("name") != value and _is_choice(path[:-1], root):
            section.clear()
        section[path[-1]] = value
        origins = {key_path: o for key_path, o in origins.items() if key_path[: len(path)] != path}
        origins[path] = origin
    return ConfigDocument(values, origins, tuple(problems))


def _enter(
    section: dict[str, Any], part: str, origins: Mapping[KeyPath, str], path: KeyPath
) -> Any:
    inner = section.get(part)
    if isinstance(inner, list | tuple):
        raise ConfigError(
            f"{'.'.join(path)} is a list ({origins.get(path, 'set in the config')}), and single "
            "items of a list cannot be overridden; give the whole list, such as key=[1, 2]"
        )
    if not isinstance(inner, dict):
        inner = section[part] = {}
    return cast(dict[str, Any], inner)


def _parse_overrides(overrides: Overrides, root: type[ConfigSection]) -> list[tuple[str, Any, str]]:
    if isinstance(overrides, Mapping):
        return [(key, _to_plain(key, value), f"override {key}") for key, value in overrides.items()]
    if isinstance(overrides, str):
        raise ConfigError(f"overrides is {overrides!r}, expected a list; write [{overrides!r}]")
    return [_parse_override(text, root) for text in overrides]


def _parse_override(text: str, root: type[ConfigSection]) -> tuple[str, Any, str]:
    key, equals, raw = text.partition("=")
    if not equals:
        raise ConfigError(
            f"{text!r} is not an override, because it has no '='; write key=value, such as "
            "run.steps=20"
        )
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ConfigError(
            f"override {text!a} is not valid {sys.getfilesystemencoding()}; check the bytes, "
            "and the locale (LC_ALL=C.UTF-8)"
        )
    key = key.strip()
    try:
        return key, _parse_override_value(raw, lookup(root, key)), f"override {text}"
    except ConfigError as error:
        raise ConfigError(f"override {text}: {error}") from error


def _parse_override_value(raw: str, keys: Sequence[ConfigKey]) -> Any:
    """Parse an override's value; where text is wanted, `1e3` and `no: really` are text."""
    annotations = [key.field.annotation for key in keys]
    wants_text = any(takes(annotation, str) for annotation in annotations)
    try:
        value = parse_value(raw)
    except ConfigError:
        if not wants_text:
            raise
        return raw
    return raw if wants_text and value is not None and not isinstance(value, str) else value


def _to_plain(key: str, value: object) -> Any:
    """Return an override's value as plain data, so that it can be saved with the run."""
    data = plain(value)
    try:
        json.dumps(data)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"override {key} is {value!r}, but a config holds only YAML values; use text, numbers, "
            "lists, and mappings"
        ) from error
    return data


def _is_choice(path: KeyPath, root: type[ConfigSection]) -> bool:
    """Whether the section at `path` is one method of several, chosen by `name`."""
    return any(len(key.sections) > 1 for key in lookup(root, ".".join(path)))


def _merge_into(
    values: dict[str, Any], top: Mapping[str, Any], path: KeyPath, root: type[ConfigSection]
) -> None:
    if path and "name" in top and values.get("name") != top["name"] and _is_choice(path, root):
        values.clear()
    for name, item in top.items():
        below = values.get(name)
        if isinstance(item, dict) and isinstance(below, dict):
            inner = cast(dict[str, Any], below)
            _merge_into(inner, cast(dict[str, Any], item), (*path, str(name)), root)
        else:
            values[name] = copy.deepcopy(item)
