"""Step 1 of the flow: which tasks come next. Its whole state is how many it has handed out."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from random import Random
from typing import Any

from agentrl.authoring.env_contract import describe_missing_tasks, read_tasks
from agentrl.env import Env
from agentrl.errors import ConfigError
from agentrl.runtime.seeds import derive
from agentrl.task import Task

SEARCHED = 20
"""Tasks that are searched per wanted one, before repeats count as the end."""


class TaskSampler:
    """Hands out train tasks: the stream in its own order first, then shuffled again per epoch.

    An endless stream has one epoch. A task that is also held out is refused when it comes up,
    unless `allow_overlap`.
    """

    def __init__(
        self,
        env: Env,
        *,
        seed: int,
        limit: int | None = None,
        heldout: Sequence[Task] = (),
        allow_overlap: bool = False,
    ) -> None:
        self._env = env
        self._stream: Iterator[Task] | None = islice(read_tasks(env, "train", seed=seed), limit)
        self._seed = seed
        self._known: list[Task] = []
        self._digest = hashlib.sha256()
        """Of the known tasks, in their order."""
        self._position = 0
        self._order: list[int] = []
        self._epoch = 0
        self._heldout = {} if allow_overlap else {task.fingerprint: task.id for task in heldout}

    @property
    def position(self) -> int:
        """Number of tasks handed out; `skip` of a fresh sampler comes back here."""
        return self._position

    @property
    def mark(self) -> Mapping[str, Any]:
        """The position, and a digest of the stream's tasks up to here, as JSON."""
        return {"position": self._position, "digest": self._digest.hexdigest()}

    def check(self, mark: Mapping[str, Any]) -> None:
        """Raise `ConfigError` where the tasks up to this position are not those of the mark."""
        if mark.get("position") == self._position and "digest" in mark and self.mark != mark:
            raise ConfigError(
                f"the first {self._position} train tasks are not those that this run has trained "
                "on: a data set or the code of the environment has changed; restore it to resume, "
                "or start a new run, from the newest checkpoint with policy.path"
            )

    def skip(self, count: int) -> None:
        """Go on as if `count` tasks had been handed out."""
        self.take(count)

    def take(self, count: int) -> list[Task]:
        """Return the next `count` tasks."""
        return [self._next() for _ in range(count)]

    def stream(self) -> Iterator[Task]:
        """Yield what is left of the stream, as `take` would; `take` goes on with epochs."""
        while (task := self._from_stream()) is not None:
            self._position += 1
            yield task

    def _next(self) -> Task:
        task = self._from_stream() or self._from_epoch()
        self._position += 1
        return task

    def _from_stream(self) -> Task | None:
        if self._stream is None:
            return None
        task = next(self._stream, None)
        if task is None:
            self._stream = None
            return None
        fingerprint = task.fingerprint
        if (other := self._heldout.get(fingerprint)) is not None:
            raise ConfigError(
                f"train task {task.id} is identical to held-out task {other}; keep the splits of "
                "the environment disjoint, or set split_guard.allow: true"
            )
        self._known.append(task)
        self._digest.update(fingerprint.encode())
        return task

    def _from_epoch(self) -> Task:
        if not self._known:
            raise ConfigError(describe_missing_tasks(self._env, "train"))
        if not self._order:
            self._epoch += 1
            self._order = list(range(len(self._known)))
            Random(derive(self._seed, "epoch", self._epoch)).shuffle(self._order)
        return self._known[self._order.pop()]


def heldout_tasks(env: Env, *, count: int, seed: int) -> list[Task]:
    """Return the first `count` different held-out tasks, or all when there are fewer.

    An endless stream of few problems is searched for `SEARCHED` times as many tasks.
    """
    tasks: dict[str, Task] = {}
    for task in islice(read_tasks(env, "heldout", seed=seed), SEARCHED * count):
        tasks.setdefault(task.fingerprint, task)
        if len(tasks) == count:
            break
    if not tasks:
        raise ConfigError(describe_missing_tasks(env, "heldout"))
    return list(tasks.values())
