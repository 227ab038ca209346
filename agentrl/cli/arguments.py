"""Arguments that several commands share."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from agentrl.errors import ConfigError

ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="A config file (YAML).")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Overrides, such as run.steps=20."),
]
EnvKwargs = Annotated[
    str, typer.Option(help="Keyword arguments of the environment, as a JSON object.")
]


def env_kwargs(text: str) -> dict[str, Any]:
    """Return what `EnvKwargs` gives. Raises `ConfigError` for anything but an object."""
    try:
        settings = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"--kwargs is {text!r}, which is not JSON: {error}") from error
    if not isinstance(settings, dict):
        raise ConfigError(f"--kwargs is {text!r}, wanted a JSON object such as '{{\"terms\": 2}}'")
    return settings
