"""Settings of the kind that their parameter is annotated with: a text, a number, a list."""

import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from agentrl.errors import ConfigError

_KINDS: Mapping[type, str] = {
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "a text",
    list: "a list",
    dict: "a mapping",
    types.NoneType: "null",
}
"""Words for the values that a config can hold."""
T = TypeVar("T")
_LISTS = (Sequence, AbstractSet, list, tuple, set, frozenset)
_MAPPINGS = (Mapping, dict)


def check_setting_kinds(maker: Callable[..., Any], settings: Mapping[str, Any], *, of: str) -> None:
    """Raise `ConfigError` for a setting of another kind than its parameter's annotation.

    Only values that a config can hold are looked at, and only annotations made of such kinds:
    whole numbers stand for others, and others for them. A parameter's default is always allowed.
    """
    function: Any = maker.__init__ if isinstance(maker, type) else maker
    try:
        hints = get_type_hints(function)
        parameters = inspect.signature(maker).parameters
    except Exception:  # noqa: BLE001 - annotations run their author's code; unread, they say nothing
        return
    for key, value in settings.items():
        parameter = parameters.get(key)
        if parameter is None or parameter.kind is parameter.VAR_KEYWORD or key not in hints:
            continue
        kinds, own_kind = _kinds_of(hints[key]), _KINDS.get(type(value))
        if not kinds or own_kind is None or own_kind in kinds:
            continue
        if type(value) is type(parameter.default) and value == parameter.default:
            continue
        raise ConfigError(f"{key} of {of} must be {' or '.join(kinds)}, got {value!r:.80}")


def read_settings(kind: type[T], values: T | Mapping[str, Any] | None, *, of: str) -> T:
    """Return settings, a dataclass whose fields have defaults, from the values of some.

    Raises `ConfigError` for what is no mapping, names no field, or is of another kind than a field.
    """
    if isinstance(values, kind):
        return values
    if values is not None and not isinstance(values, Mapping):
        raise ConfigError(f"{of} must be a mapping of its settings, got {values!r:.80}")
    settings = dict(cast("Mapping[str, Any]", values or {}))
    field_names = sorted(inspect.signature(kind).parameters)
    if unknown := sorted(settings.keys() - set(field_names)):
        raise ConfigError(
            f"{of} has no settings {unknown}; its settings are {', '.join(field_names)}"
        )
    check_setting_kinds(kind, settings, of=of)
    return kind(**settings)


def _kinds_of(hint: Any) -> tuple[str, ...]:
    """Return the kinds of values that an annotation allows; none where some are unknown."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        kinds_of_parts = [_kinds_of(part) for part in get_args(hint)]
        if not all(kinds_of_parts):
            return ()
        return tuple(dict.fromkeys(kind for kinds in kinds_of_parts for kind in kinds))
    if origin is Literal:
        kinds_of_values = [_KINDS.get(type(value), "") for value in get_args(hint)]
        return tuple(dict.fromkeys(kinds_of_values)) if all(kinds_of_values) else ()
    plain = origin or hint
    if plain in _LISTS:
        return ("a list",)
    if plain in _MAPPINGS:
        return ("a mapping",)
    kind = _KINDS.get(plain) if isinstance(plain, type) else None
    return (kind,) if kind else ()
