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
    max_turns: Annotated[int, typer.Option(min=1, help="Actions the gold player may take.")] = 16,
    timeout_s: Annotated[float, typer.Option(min=0.1, help="For each call.")] = 60.0,
    grace_s: Annotated[float, typer.Option(min=0, help="For what was started to be gone.")] = 5.0,
) -> None:
    """Prove an environment's promises by playing it."""
    from agentrl.registry import make
    from agentrl.testing import check_env as check

    env = make(id, **env_kwargs(kwargs))
    proving = check(
        env, episodes=episodes, max_turns=max_turns, timeout_s=timeout_s, grace_s=grace_s
    )
    for promise in asyncio.run(proving):
        out.print(f"[green]ok[/green]  {promise}")
