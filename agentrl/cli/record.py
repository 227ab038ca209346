"""`agentrl record`."""

import asyncio
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from agentrl.cli.arguments import EnvKwargs, env_kwargs
from agentrl.cli.console import out


def record(
    id: Annotated[str, typer.Argument(metavar="ID", help="A registered id, or module:Class.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The JSONL file to write.")],
    *,
    kwargs: EnvKwargs = "{}",
    tasks: Annotated[int, typer.Option(min=1, help="Train tasks to record, at most.")] = 1000,
    concurrency: Annotated[int, typer.Option(min=1, help="Episodes at a time.")] = 16,
    seed: Annotated[int, typer.Option(help="Of the tasks.")] = 0,
) -> None:
    """Record what an environment's gold player does, as trajectories to train on."""
    from agentrl.learn.recording import recording_of, write_recordings
    from agentrl.registry import make
    from agentrl.rollout.demonstrations import demonstrate
    from agentrl.scope import run_scope

    make_env = partial(make, id, **env_kwargs(kwargs))
    chosen = list(islice(make_env().tasks("train", seed=seed), tasks))

    async def played() -> None:
        async with run_scope():
            episodes = await demonstrate(
                make_env,
                chosen,
                guess_fraction=0.0,
                seed=seed,
                concurrency=concurrency,
                wants_places=True,
                max_turns=None,
            )
        file.parent.mkdir(parents=True, exist_ok=True)
        write_recordings(file, map(recording_of, episodes), picture_files=True)

    asyncio.run(played())
    out.print(f"{len(chosen)} recordings are in {file}", markup=False)
