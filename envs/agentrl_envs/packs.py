"""A set of tasks given by name, made of its settings."""

import inspect
from collections.abc import Mapping
from typing import Any, TypeVar, cast

from agentrl.authoring.setting_kinds import check_setting_kinds
from agentrl.errors import ConfigError
from agentrl.runtime.imports import import_callable

P = TypeVar("P")


def made_pack(pack: str | P, kwargs: Mapping[str, Any]) -> P:
    """Return the pack that `module:name` makes of settings, or the one that was given.

    Raises `ConfigError` for settings that it does not take.
    """
    if not isinstance(pack, str):
        if kwargs:
            raise ConfigError(
                f"settings {sorted(kwargs)} apply only to a pack given as module:name"
            )
        return pack
    maker = import_callable(pack)
    try:
        inspect.signature(maker).bind(**kwargs)
    except TypeError as error:
        parameters = ", ".join(inspect.signature(maker).parameters) or "none"
        raise ConfigError(
            f"{pack}: {error}; the settings of these tasks are: {parameters}"
        ) from None
    check_setting_kinds(maker, kwargs, of=pack)
    return cast("P", maker(**kwargs))
