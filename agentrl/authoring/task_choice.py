"""Choice of the task of an episode for which nobody named one, and endless tasks by seed."""

import random
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Protocol

from agentrl.errors import ConfigError
from agentrl.runtime.seeds import derive
from agentrl.task import Split, Task, split_of

_POOL = 16
"""Tasks looked at: enough that a fixed list gives different tasks for different seeds."""


class HasTasks(Protocol):
    """Anything with the tasks of an environment."""

    def tasks(self, split: Split, *, seed: int = 0) -> Iterable[Task]:
        """Yield the tasks of a split."""
        ...


def choose_task(env: HasTasks, *, seed: int, options: Mapping[str, Any]) -> Task:
    """Return `options["task"]`, or one of the first train tasks, chosen by `seed`.

    Every `Env.reset` can begin with it. Raises `ConfigError` if there is none.
    """
    if (task := options.get("task")) is not None:
        if isinstance(task, Task):
            return task
        raise ConfigError(f'options["task"] is a {type(task).__name__}; pass an agentrl.Task')
    pool = list(islice(env.tasks("train", seed=derive("reset", seed)), _POOL))
    if not pool:
        raise ConfigError(
            f"{type(env).__name__} has no train tasks; tasks('train', seed) must yield at least one"
        )
    return pool[derive("choice", seed) % len(pool)]


def seed_tasks(
    kind: str, name: str, split: Split, *, seed: int, prompt: str = ""
) -> Iterator[Task]:
    """Yield endless seeds as tasks; a seed's own number decides its split.

    `kind` tells the libraries apart, `name` their worlds. The answer makes the fingerprints differ:
    worlds that open alike and go on by chance are different problems.
    """
    rng = random.Random(derive(kind, split, seed))
    while True:
        number = rng.randrange(2**31)
        id = f"{name}#{number}"
        if split_of(id) == split:
            yield Task(prompt=prompt or id, answer=number, id=id, split=split, seed=number)


def sample_pairs(
    split: Split, seed: int, *, low: int = 2, high: int = 99
) -> Iterator[tuple[int, int]]:
    """Yield endless pairs of integers between `low` and `high`, both included.

    A pair's own text decides its split, so no pair is in both whatever the seeds; pairs repeat.

    Args:
        split: Split whose pairs to yield.
        seed: Seed of the order.
        low: Smallest integer.
        high: Largest integer.
    """
    rng = random.Random(derive("pairs", split, seed))
    while True:
        pair = rng.randint(low, high), rng.randint(low, high)
        if split_of(f"{pair[0]},{pair[1]}") == split:
            yield pair
