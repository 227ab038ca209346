"""Arguments that several commands share."""

import os
import tempfile
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from agentrl.cli.completion import (
    complete_config,
    complete_env_id,
    complete_override,
    complete_run,
)
from agentrl.cli.console import reserve_stdout
from agentrl.errors import ConfigError
from agentrl.runtime.json_limits import JsonLimitError, read_json

ConfigFile = Annotated[
    Path,
    typer.Argument(
        metavar="CONFIG",
        autocompletion=complete_config,
        help="Config file (YAML), or a name of agentrl configs.",
    ),
]
RunFolder = Annotated[
    Path,
    typer.Argument(metavar="RUN", autocompletion=complete_run, help="Run folder."),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        autocompletion=complete_override,
        help="Config overrides, such as run.steps=20.",
    ),
]


def _reserve_stdout(context: typer.Context, wanted: bool) -> bool:
    if wanted and not context.resilient_parsing:
        context.with_resource(reserve_stdout())
    return wanted


JsonFlag = Annotated[
    bool,
    typer.Option(
        "--json/--no-json",
        show_default=False,
        callback=_reserve_stdout,
        is_eager=True,
        help="Print JSON to stdout, and everything else to stderr.",
    ),
]
"""Makes a command print its result with `agentrl.cli.console.show_json`."""


EnvId = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        autocompletion=complete_env_id,
        help="Registered environment id, or module:Class.",
    ),
]
EnvKwargs = Annotated[
    str, typer.Option(help="Keyword arguments for the environment, as a JSON object.")
]


def check_writable(file: Path | None, option: str) -> None:
    """Raise `ConfigError` where `file` cannot be written, before the work that it is to hold."""
    if file is None:
        return
    folder = file.parent
    if file.is_dir():
        raise ConfigError(f"{option} is {file}, which is a folder; give the path of a file")
    if file.exists() and not file.is_file():
        raise ConfigError(
            f"{option} is {file}, which is a device or a pipe and would be replaced; give the path "
            "of a file"
        )
    if not folder.is_dir():
        raise ConfigError(
            f"{option} is {file}, but the folder {folder} does not exist; create it first"
        )
    if not os.access(folder, os.W_OK):
        raise ConfigError(
            f"{option} is {file}, but the folder {folder} is not writable; choose another path"
        )
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:  # /proc and others that say they are writable
        raise ConfigError(
            f"{option} is {file}, but the folder {folder} takes no new file: "
            f"{error.strerror or error}; choose another path"
        ) from error


def parse_env_kwargs(text: str) -> dict[str, Any]:
    """Parse the value of `EnvKwargs`. Raises `ConfigError` for anything but an object."""
    try:
        settings = read_json(text)
    except JsonLimitError as error:
        raise ConfigError(f"--kwargs is {text!r:.200}, and {error}") from error
    if not isinstance(settings, dict):
        raise ConfigError(
            f"--kwargs is {text!r:.200}, expected a JSON object such as '{{\"terms\": 2}}'"
        )
    return cast(dict[str, Any], settings)
