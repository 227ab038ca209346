"""Import of what configs and ids name: `module:name`, with errors that say what is missing."""

from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module
from typing import Any

from agentrl.errors import AgentrlError, ConfigError
from agentrl.runtime.extras import explain_missing, missing_module


def import_callable(entry_point: str) -> Callable[..., Any]:
    """Import the callable that `module:name` names. Raises `ConfigError`."""
    target = import_object(entry_point)
    if not callable(target):
        raise ConfigError(f"{entry_point} is a {type(target).__name__}; name a class or a function")
    return target


def import_object(entry_point: str) -> Any:
    """Import the object that `module:name` names. Raises `ConfigError`."""
    module_name, _, name = entry_point.partition(":")
    if not module_name or not name:
        raise ConfigError(f"entry point {entry_point!r} does not have the form module:Class")
    target: Any = import_named(module_name, entry_point)
    for part in name.split("."):
        if not hasattr(target, part):
            near = get_close_matches(part, dir(target), n=1)
            hint = f"did you mean {near[0]!r}?" if near else "check the spelling"
            raise ConfigError(f"{entry_point}: {module_name} has no {part!r}; {hint}")
        target = getattr(target, part)
    return target


def import_named(module_name: str, named_by: str) -> Any:
    """Return the module that `named_by`, an id or an entry point, names. Raises `ConfigError`."""
    try:
        return import_module(module_name)
    except AgentrlError:
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, ImportError) and (module := missing_module(error)):
            raise ConfigError(explain_missing(named_by, module)) from error
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{module_name}.".startswith(f"{missing}."):
            raise ConfigError(
                f"{named_by}: there is no module {missing!r} on the import path; install it, or "
                "add its folder to PYTHONPATH"
            ) from error
        raise ConfigError(
            f"{named_by}: the module {module_name} cannot be imported: {type(error).__name__}: "
            f"{error}"
        ) from error
