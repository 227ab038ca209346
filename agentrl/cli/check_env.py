"""`agentrl check-env`."""

from typing import Annotated

import typer

from agentrl.cli.arguments import EnvId, EnvKwargs, JsonFlag, parse_env_kwargs
from agentrl.cli.console import out, show_json, show_text


def check_env(
    id: EnvId,
    *,
    kwargs: EnvKwargs = "{}",
    episodes: Annotated[int, typer.Option(min=1, help="Number of episodes to play per split.")] = 3,
    max_turns: Annotated[
        int, typer.Option(min=1, help="Maximum number of turns per episode of the gold player.")
    ] = 16,
    gold_reward: Annotated[
        float, typer.Option(help="Reward that the gold player must earn, and doing nothing not.")
    ] = 1.0,
    timeout_s: Annotated[
        float,
        typer.Option(
            min=0.1, help="Timeout of each call that does not block the event loop, in seconds."
        ),
    ] = 60.0,
    grace_s: Annotated[
        float,
        typer.Option(
            min=0,
            help="Time allowed for processes and threads of the environment to exit, in seconds.",
        ),
    ] = 5.0,
    as_json: JsonFlag = False,
) -> None:
    """Check that an environment keeps its contract, by playing episodes."""
    import asyncio

    from agentrl.registry import make
    from agentrl.testing import check_env as check

    env = make(id, **parse_env_kwargs(kwargs))
    proving = check(
        env,
        episodes=episodes,
        max_turns=max_turns,
        gold_reward=gold_reward,
        timeout_s=timeout_s,
        grace_s=grace_s,
    )
    promises = list(asyncio.run(proving))
    if as_json:
        show_json({"id": id, "kept": promises})
        return
    for promise in promises:
        show_text(f"{out.paint('ok', 'green')}  {promise}")
