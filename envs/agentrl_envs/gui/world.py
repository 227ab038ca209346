"""The contract between a desktop and the tasks on it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from agentrl.env import Action, Info
from agentrl.message import Message
from agentrl.task import Split, Task
from agentrl_envs.web.observation.node import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What is on the desktop when an episode begins."""

    goal: str
    """What the agent is asked to do."""
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    """By path below the home directory. A path that ends with `/` is a directory."""
    programs: Sequence[Sequence[str]] = ()
    """Commands, each started when the one before has a window."""
    runs_code: bool = False
    """Whether a program of it lets the agent run code: then nobody else gets this desktop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What an episode was worth."""

    reward: float
    info: Info = field(default_factory=dict[str, Any])


class LiveDesktop(Protocol):
    """What a checker can look at. Everything raises `EnvError` where the desktop is lost."""

    async def read(self, path: str) -> bytes | None:
        """Return a file below the home directory; None where there is none of at most 4 MiB."""
        ...

    async def files(self, folder: str) -> Mapping[str, str]:
        """Return what lies below a directory of the home: `file`, `folder` or `other` by path."""
        ...

    async def quit(self) -> bool:
        """Ask the programs to end, so that they write down what they know; whether all did."""
        ...

    async def nodes(self) -> Sequence[Node]:
        """Return what the programs show, as an accessibility tree."""
        ...


class DesktopPack(Protocol):
    """Tasks of one kind."""

    def tasks(self, split: Split, seed: int) -> Iterable[Task]:
        """Yield the tasks of a split, finitely or not; the same ones for the same seed."""
        ...

    def scene(self, task: Task) -> Scene:
        """Return how the desktop is when `task` begins."""
        ...

    async def judge(
        self, task: Task, desktop: LiveDesktop, said: str | None, *, failed: bool
    ) -> Verdict:
        """Say what an episode was worth at its end.

        `said` is the agent's last word, None where it did not get to one; `failed` whether that
        was that the task cannot be done.
        """
        ...

    def gold(self, task: Task, seen: Sequence[Message]) -> Action:
        """Return the next action of a player that solves `task`, having read these messages.

        Raises `KeyError` for a task nobody here can solve.
        """
        ...
