"""`agentrl record`."""

import os
import select
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from agentrl.cli.arguments import EnvId, EnvKwargs, check_writable, parse_env_kwargs
from agentrl.cli.console import err, show_prompt, show_text
from agentrl.cli.progress import show_progress
from agentrl.errors import ConfigError
from agentrl.runtime.threads import run_in_stoppable_thread

if TYPE_CHECKING:
    from agentrl.env import Env
    from agentrl.task import Task

_LOOK_S = 0.2
"""Seconds between two looks at whether the wait for a line was cancelled."""


def record(
    id: EnvId,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="JSONL file to write.")],
    *,
    kwargs: EnvKwargs = "{}",
    player: Annotated[
        Literal["gold", "human"],
        typer.Option(
            help=(
                "Player to record: the environment's gold player, or a human, whose episodes are "
                "appended to FILE."
            )
        ),
    ] = "gold",
    tasks: Annotated[
        int, typer.Option(min=1, help="Maximum number of train tasks to record.")
    ] = 1000,
    concurrency: Annotated[
        int, typer.Option(min=1, help="Number of gold episodes to play concurrently.")
    ] = 16,
    seed: Annotated[int, typer.Option(help="Seed of the tasks.")] = 0,
    at: Annotated[
        str,
        typer.Option(
            help=(
                "VNC address at which to show the desktop to a human player: 127.0.0.1:PORT or "
                "unix:PATH."
            )
        ),
    ] = "",
    terminal: Annotated[
        bool,
        typer.Option(
            show_default=False,
            help="Type tool calls in the terminal even if the environment has a desktop.",
        ),
    ] = False,
) -> None:
    """Record demonstrations of an environment's gold player or of a human, for training."""
    file.parent.mkdir(parents=True, exist_ok=True)
    check_writable(file, "FILE")
    if player == "gold" and file.exists() and file.stat().st_size:
        raise ConfigError(
            f"FILE is {file}, which exists, and recordings of the gold player would replace it; "
            "give the path of a new file, or remove it"
        )
    import asyncio

    from agentrl.authoring.env_contract import read_tasks
    from agentrl.registry import make

    make_env = partial(make, id, **parse_env_kwargs(kwargs))
    train_tasks = list(islice(read_tasks(make_env(), "train", seed=seed), tasks))
    if player == "human":
        asyncio.run(_record_human(make_env(), train_tasks, file, at=at, terminal=terminal))
        return
    count = asyncio.run(_record_gold(make_env, train_tasks, file, concurrency=concurrency))
    show_text(f"wrote {count} recordings to {file}")


async def _record_gold(
    make_env: "Callable[[], Env]",
    tasks: "Sequence[Task]",
    file: Path,
    *,
    concurrency: int,
) -> int:
    from agentrl.learn.recording import recording_of, write_recordings
    from agentrl.rollout.demonstrations import PlannedDemonstration, demonstrate
    from agentrl.runtime.scope import run_scope

    with show_progress() as progress, progress.phase("record", total=len(tasks)) as bar:
        async with run_scope():
            episodes = await demonstrate(
                make_env,
                [PlannedDemonstration(task) for task in tasks],
                concurrency=concurrency,
                on_episode=bar.advance,
                wants_places=True,
                max_turns=None,
            )
    return write_recordings(file, map(recording_of, episodes), picture_files=True)


async def _record_human(
    env: "Env", tasks: "Sequence[Task]", file: Path, *, at: str, terminal: bool
) -> None:
    """Let the person at the terminal play, each episode kept as soon as it is over."""
    from agentrl.authoring.gold import play
    from agentrl.authoring.human_player import (
        HumanPlayable,
        PlayerLeft,
        TaskSkipped,
        TerminalPlayer,
    )
    from agentrl.errors import EnvError
    from agentrl.learn.recording import append_recording, recording_of
    from agentrl.runtime.scope import run_scope

    stdin: Any = sys.stdin  # None where the shell closed it, `<&-`
    descriptor = os.open(os.devnull, os.O_RDONLY) if stdin is None else stdin.fileno()
    typed = TerminalPlayer(InputLines(descriptor).read_line, show_text)
    count = 0
    async with run_scope():
        try:
            seat = typed if terminal or not isinstance(env, HumanPlayable) else env.seat(at=at)
            async with seat as place:
                show_text(place.invitation)
                for task in tasks:
                    try:
                        episode = await play(env, task, place.act, wants_places=True)
                    except (EnvError, TaskSkipped) as why:
                        show_text(f"not recorded: {why}", err)
                        continue
                    except PlayerLeft:
                        break
                    append_recording(file, recording_of(episode, player="human"))
                    count += 1
                    show_text(f"recorded, reward {episode.reward:g}")
        finally:
            show_text(f"wrote {count} recordings to {file}" if count else "nothing was recorded")
            await env.close()


class InputLines:
    """Lines that are typed or piped in; whoever waits for one can be cancelled."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._pending = bytearray()

    async def read_line(self) -> str:
        """Ask for a line and return it.

        Raises `EOFError` at the end, and `UnicodeDecodeError` for a line that is not UTF-8.
        """
        show_prompt("> ")
        while b"\n" not in self._pending:
            if not (chunk := await run_in_stoppable_thread(self._read)):
                break
            self._pending += chunk
        line, newline, rest = self._pending.partition(b"\n")
        self._pending = rest
        if not line and not newline:
            raise EOFError
        return line.decode()

    def _read(self, stop: threading.Event) -> bytes:
        while not stop.is_set():
            if select.select([self._descriptor], (), (), _LOOK_S)[0]:
                return os.read(self._descriptor, 2**16)
        return b""
