"""From a file and overrides to a checked `RunConfig`, and back to a file."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from agentrl.config.check import cross_check
from agentrl.config.document import ConfigDocument, KeyPath, dump, read
from agentrl.config.override import Overrides, apply, merge
from agentrl.config.packaged import find_config_file
from agentrl.config.problem import config_error, problems_of
from agentrl.config.run import RunConfig
from agentrl.config.schema import format_value, keys, method_of, plain
from agentrl.errors import ConfigError
from agentrl.runtime.atomic_files import write_text


def load_config(source: RunConfig | Path | str, overrides: Overrides = ()) -> RunConfig:
    """Return the config in a YAML file, or a loaded one, with overrides laid over it.

    `source` may be the name of a config that comes with agentrl, such as `quickstart`. A file may
    name another one with `base: other.yaml`, relative to itself, or `base: quickstart`, which is
    laid under it. Raises one `ConfigError` that lists every problem of the file with its line.
    """
    if isinstance(source, RunConfig):
        if not overrides:
            return source
        document, name = ConfigDocument(plain(source)), "the config"
    else:
        path = find_config_file(Path(source))
        document, name = _read_with_base(path, ()), str(path)
    return parse_config(apply(document, overrides, RunConfig), name)


def parse_config(document: ConfigDocument, source: str) -> RunConfig:
    """Return the config in a document; `source` names it in errors."""
    problems = list(document.problems)
    values = _fill_in_methods(document.values)
    config: RunConfig | None = None
    try:
        # JSON in strict mode refuses "5" and true for a number, and still takes lists for tuples
        # and text for paths.
        config = RunConfig.model_validate_json(json.dumps(values), strict=True)
    except ValidationError as error:
        problems += problems_of(error, document, RunConfig)
    if config is not None:
        problems += cross_check(config)
    if problems or config is None:
        raise config_error(source, problems)
    return config


def save_resolved(config: RunConfig, path: Path) -> None:
    """Write the complete config, every default included; loading it gives the same config."""
    write_text(path, dump(plain(config)))


def _read_with_base(path: Path, above: tuple[Path, ...]) -> ConfigDocument:
    if path.resolve() in above:
        chain = " -> ".join(str(p) for p in (*above, path.resolve()))
        raise ConfigError(f"{path} is its own base ({chain}); remove one `base:`")
    document = read(path)
    base = document.values.pop("base", None)
    if base is None:
        return document
    origin = document.origins.pop(("base",), str(path))
    if not isinstance(base, str):
        raise ConfigError(f"{origin}: base is {base!r}, expected the path of one other config file")
    try:
        file = find_config_file(Path(base), folder=path.parent)
        below = _read_with_base(file, (*above, path.resolve()))
    except ConfigError as error:
        raise ConfigError(f"{error} (named by `base:` in {origin})") from error
    return merge(below, document, RunConfig)


def _fill_in_methods(values: dict[str, Any]) -> dict[str, Any]:
    """Fill in the `name` of a section with a choice of methods that leaves it at its default."""
    values = json.loads(json.dumps(values))
    for path, method in _find_choices():
        section: Any = values
        for part in path:
            section = cast(dict[str, Any], section).get(part) if isinstance(section, dict) else None
        if isinstance(section, dict) and "name" not in section:
            cast(dict[str, Any], section)["name"] = method
    return values


def _find_choices() -> Iterator[tuple[KeyPath, str]]:
    for key in keys(RunConfig):
        if len(key.sections) > 1 and not key.required:
            default = key.field.get_default(call_default_factory=True)
            if default is not None and (method := method_of(type(default))):
                yield tuple(key.path.split(".")), method


LISTED = 8


def changes(was: RunConfig, now: RunConfig, *, counts: Callable[[str], bool]) -> str:
    """Return the relevant keys that differ, each with both values; empty if there are none."""
    old, new = dict(_flatten(plain(was))), dict(_flatten(plain(now)))
    changed = [
        f"{key} was {_format_known(old, key)} and is {_format_known(new, key)}"
        for key in sorted(old.keys() | new.keys())
        if not (key in old and key in new and old[key] == new[key]) and counts(key)
    ]
    more = len(changed) - LISTED
    changed[LISTED:] = [f"and {more} more"] if more > 0 else []
    return "; ".join(changed)


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from _flatten(cast(dict[str, Any], value), f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _format_known(values: Mapping[str, object], key: str) -> str:
    return format_value(values[key]) if key in values else "not set"
