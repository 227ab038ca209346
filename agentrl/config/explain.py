"""Explanations of config keys: of one in a terminal, of all in `docs/configuration.md`."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from agentrl.config.problem import unknown_key
from agentrl.config.run import RunConfig
from agentrl.config.schema import ConfigKey, iter_own_keys, keys, lookup, method_of
from agentrl.config.section import ConfigSection
from agentrl.errors import ConfigError

COMMON_KEYS = (
    "env.id",
    "policy.path",
    "run.name",
    "run.steps",
    "rollout.tasks_per_step",
    "rollout.group_size",
    "sampling.max_turn_tokens",
    "engine.context_tokens",
    "learn.optimizer.learning_rate",
    "evaluate.tasks",
)
"""Keys that most configs set; README.md has them, too."""


def explain(key: str = "") -> str:
    """Describe a key, or a section as a table; "" is the whole config. `ConfigError` for none."""
    if not key:
        common = [found for path in COMMON_KEYS for found in lookup(RunConfig, path)]
        lines = ["The keys that most people change:", "", *_format_table(common), ""]
        lines += [_join_doc(RunConfig), "", *_format_table(iter_own_keys(RunConfig))]
        return "\n".join(lines)
    matches = lookup(RunConfig, key)
    if not matches:
        raise ConfigError(_describe_unknown(key))
    # Several methods can share a key that means the same in all of them.
    methods: dict[str, list[str]] = {}
    for one in matches:
        methods.setdefault("\n".join(_describe_key(one)), []).append(one.method or "")
    return "\n\n".join(
        key + (f" (of {', '.join(names)})" if any(names) else "") + f"\n{text}"
        for text, names in methods.items()
    )


def to_json(key: str = "") -> list[dict[str, Any]]:
    """Return a key and those below it as plain values. `ConfigError` for none."""
    if key and not lookup(RunConfig, key):
        raise ConfigError(_describe_unknown(key))
    return [
        {
            "key": one.path,
            "method": one.method or None,
            "type": one.wants,
            "default": one.default,
            "meaning": one.doc,
            "common": one.path in COMMON_KEYS,
        }
        for one in keys(RunConfig)
        if not key or f"{one.path}.".startswith(f"{key}.")
    ]


def markdown() -> str:
    """Return a table of every key, one per section, for the documentation."""
    parts: list[str] = []
    for key in keys(RunConfig):
        for section in key.sections:
            parts += [f"### {_format_heading(key, section)}", "", _join_doc(section), ""]
            rows = [k for k in _rows(section, key.path) if not k.sections]
            if rows:
                parts += ["| key | type | default | meaning |", "| --- | --- | --- | --- |"]
                parts += [*(_format_markdown_row(row) for row in rows), ""]
    return "\n".join(parts)


def _describe_key(key: ConfigKey) -> Iterator[str]:
    if key.doc:
        yield f"  {key.doc}"
    yield f"  type     {key.wants}"
    yield f"  default  {key.default}"
    for section in key.sections:
        yield ""
        if len(key.sections) > 1:
            yield f"name: {method_of(section)}"
        yield _join_doc(section)
        if rows := list(_rows(section, key.path)):
            yield ""
            yield from _format_table(rows)


def _format_table(rows: Iterable[ConfigKey]) -> Iterator[str]:
    cells = [("key", "type", "default", "meaning")]
    cells += [(key.path, key.wants, key.default, key.doc) for key in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(3)]
    for row in cells:
        padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        yield "  ".join([*padded, row[3]]).rstrip()


def _format_heading(key: ConfigKey, section: type[ConfigSection]) -> str:
    method = method_of(section)
    words = f"`{key.path}` with `name: {method}`" if method else f"`{key.path}`"
    if key.default == "null":
        return f"{words}, off by default"
    return f"{words}, the default" if method and method == key.default else words


def _rows(section: type[ConfigSection], path: str) -> Iterator[ConfigKey]:
    """Yield the keys of a section, without the `name` that chose it."""
    for key in iter_own_keys(section, f"{path}."):
        if not (method_of(section) and key.name == "name"):
            yield key


def _join_doc(section: type[ConfigSection]) -> str:
    return " ".join((section.__doc__ or "").split())


def _format_markdown_row(key: ConfigKey) -> str:
    cells: Sequence[str] = (f"`{key.name}`", key.wants, f"`{key.default}`", key.doc)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _describe_unknown(path: str) -> str:
    parts = path.split(".")
    sections: tuple[type[ConfigSection], ...] = (RunConfig,)
    for depth in range(1, len(parts) + 1):
        matches = lookup(RunConfig, ".".join(parts[:depth]))
        if not matches:
            if not sections:
                above = ".".join(parts[: depth - 1])
                return f"{path} is not a key: {above} holds a value, not a section"
            return unknown_key(".".join(parts[:depth]), sections, RunConfig)
        sections = tuple(section for key in matches for section in key.sections)
    return unknown_key(path, sections, RunConfig)
