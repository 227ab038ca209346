"""Choice of the task of an episode for which nobody named one."""

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, Protocol

from agentrl.errors import ConfigError
from agentrl.runtime.seeds import derive
from agentrl.task import Split, Task

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
