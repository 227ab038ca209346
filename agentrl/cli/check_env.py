"""`agentrl check-env`."""

import asyncio
import json
from typing import Annotated, Any

import typer

from agentrl.cli.console import out
from agentrl.errors import ConfigError


def check_env(
    id: Annotated[str, typer.Argument(metavar="ID", help="A registered id, or module:Class.")],
    *,
    kwargs: Annotated[
        str, typer.Option(help="Keyword arguments of the environment, as a JSON object.")
    ] = "{}",
    episodes: Annotated[int, typer.Option(min=1, help="Episodes of each split to play.")] = 3,
) -> None:
    """Prove an environment's promises by playing it."""
    from agentrl.registry import make
    from agentrl.testing import check_env as check

    env = make(id, **_settings(kwargs))
    for promise in asyncio.run(check(env, episodes=episodes)):
        out.print(f"[green]ok[/green]  {promise}")


def _settings(text: str) -> dict[str, Any]:
    try:
        settings = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"--kwargs is {text!r}, which is not JSON: {error}") from error
    if not isinstance(settings, dict):
        raise ConfigError(f"--kwargs is {text!r}, wanted a JSON object such as '{{\"terms\": 2}}'")
    return settings
