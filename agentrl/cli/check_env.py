"""`agentrl check-env`."""

import asyncio
from typing import Annotated

import typer

from agentrl.cli.arguments import EnvKwargs, env_kwargs
from agentrl.cli.console import out


def check_env(
    id: Annotated[str, typer.Argument(metavar="ID", help="A registered id, or module:Class.")],
    *,
    kwargs: EnvKwargs = "{}",
    episodes: Annotated[int, typer.Option(min=1, help="Episodes of each split to play.")] = 3,
) -> None:
    """Prove an environment's promises by playing it."""
    from agentrl.registry import make
    from agentrl.testing import check_env as check

    env = make(id, **env_kwargs(kwargs))
    for promise in asyncio.run(check(env, episodes=episodes)):
        out.print(f"[green]ok[/green]  {promise}")
