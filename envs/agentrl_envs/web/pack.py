"""The contract of a set of web tasks: which there are, the world of each, and who can solve it."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from agentrl.env import Action
from agentrl.message import Message
from agentrl.task import Split, Task
from agentrl_envs.web.episode_site import EpisodeSite


class WebTaskPack(Protocol):
    """Tasks of one kind."""

    def tasks(self, split: Split, seed: int) -> Iterable[Task]:
        """Yield the tasks of a split, finitely or not; the same ones for the same seed."""
        ...

    def world(self, task: Task) -> EpisodeSite:
        """Return the world in which `task` is to be done; cheap, acquires nothing."""
        ...

    def gold(self, task: Task, seen: Sequence[Message]) -> Action:
        """Return the next action of a player that solves `task`, having read these messages.

        Raises `KeyError` for a task nobody here can solve.
        """
        ...
