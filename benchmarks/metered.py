"""An environment that writes down when it was in an episode, and when it worked in it.

Not for its own sake: a benchmark names it as `env.id` and reads the file afterwards.
"""

import json
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import agentrl
from agentrl.env import Action, BaseEnv, Env, GoldPlayer, Info, Observation, Step
from agentrl.message import Message
from agentrl.task import Split, Task

Interval = tuple[float, float]
"""Beginning and end, in seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class Episode:
    """When an environment had an episode, and when it computed for it."""

    held: Interval
    """From the beginning of the reset to when it was given up."""
    worked: tuple[Interval, ...]
    """The reset and the steps, end by end."""


@dataclass(slots=True)
class _Open:
    began_s: float
    worked: list[Interval] = field(default_factory=list[Interval])


class Metered(BaseEnv):
    """Another environment; `log` gets a line for each of its episodes."""

    gold: Callable[[Task, Sequence[Message]], Action]
    """Only there where the other one has a player."""

    def __init__(self, *, world: str, log: str, **kwargs: Any) -> None:
        """Make the environment with the id `world` and the other arguments."""
        self._log = Path(log)
        self._open: _Open | None = None
        self._wrap(agentrl.make(world, **kwargs))

    def _wrap(self, env: Env) -> None:
        self._env = env
        if isinstance(env, GoldPlayer):
            self.gold = env.gold

    def tasks(self, split: Split, *, seed: int = 0) -> Iterable[Task]:
        """Yield the other's tasks."""
        return self._env.tasks(split, seed=seed)

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Begin an episode."""
        self._write()
        self._open = _Open(time.time())
        with self._working():
            return await self._env.reset(seed=seed, options=options)

    async def step(self, action: Action) -> Step:
        """Go on."""
        with self._working():
            return await self._env.step(action)

    async def fork(self) -> Self:
        """Return a fork of the other, which is an episode of its own."""
        made = type(self).__new__(type(self))
        made._log, made._open = self._log, _Open(time.time())
        made._wrap(await self._env.fork())
        return made

    async def close(self) -> None:
        """Give the other up."""
        self._write()
        await self._env.close()

    @contextmanager
    def _working(self) -> Generator[None]:
        began_s = time.time()
        try:
            yield
        finally:
            if self._open is not None:
                self._open.worked.append((began_s, time.time()))

    def _write(self) -> None:
        opened, self._open = self._open, None
        if opened is not None:
            line = {"held": [opened.began_s, time.time()], "worked": opened.worked}
            with self._log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


def read_episodes(log: Path) -> list[Episode]:
    """Return what `Metered` wrote."""
    rows = (json.loads(line) for line in log.read_text(encoding="utf-8").splitlines())
    return [
        Episode(
            held=(row["held"][0], row["held"][1]),
            worked=tuple((began, ended) for began, ended in row["worked"]),
        )
        for row in rows
    ]


def inside(interval: Interval, window: Interval) -> float:
    """Return how many seconds of an interval lie within a window."""
    return max(0.0, min(interval[1], window[1]) - max(interval[0], window[0]))


def utilisation(episodes: Iterable[Episode], window: Interval, places: int) -> tuple[float, float]:
    """Return the shares of `places` x the window that episodes held, and that they worked."""
    held_s = worked_s = 0.0
    for episode in episodes:
        held_s += inside(episode.held, window)
        worked_s += sum(inside(one, window) for one in episode.worked)
    whole_s = places * (window[1] - window[0])
    if whole_s <= 0:
        raise ValueError(f"the window {window} with {places} places has no time in it")
    return held_s / whole_s, worked_s / whole_s
