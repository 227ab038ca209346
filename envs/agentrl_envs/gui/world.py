"""The contract between a desktop and the tasks on it."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from agentrl.env import Info
from agentrl.task import Task
from agentrl_envs.accessibility.node import AccessibilityNode
from agentrl_envs.pooled import TaskPack


@dataclass(frozen=True, slots=True, kw_only=True)
class DesktopScene:
    """State of the desktop when an episode begins."""

    goal: str
    """Request to the agent."""
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    """By path below the home directory. A path that ends with `/` is a directory."""
    programs: Sequence[Sequence[str]] = ()
    """Commands, each started when the one before has a window."""
    runs_code: bool = False
    """Whether a program of it lets the agent run code: then nobody else gets this desktop."""
    begin: "Callable[[WritableDesktop], Awaitable[None]] | None" = None
    """Further preparation before the episode begins, once the programs are there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskVerdict:
    """Reward of an episode."""

    reward: float
    info: Info = field(default_factory=dict[str, Any])


class LiveDesktop(Protocol):
    """View of a desktop for checkers. Everything raises `EnvError` where the desktop is lost."""

    async def read(self, path: str) -> bytes | None:
        """Return a file, by its path in the home or a whole one; None for none of at most 4 MiB."""
        ...

    async def files(self, folder: str) -> Mapping[str, str]:
        """Return the entries below a directory of the home: `file`, `folder` or `other` by path."""
        ...

    async def quit(self) -> bool:
        """Ask the programs to end, so that they write down what they know; whether all did."""
        ...

    async def nodes(self) -> Sequence[AccessibilityNode]:
        """Return the accessibility nodes of the programs, as a tree."""
        ...


@dataclass(frozen=True, slots=True)
class CommandResult:
    """Result of a command on a desktop."""

    code: int | None
    """None where it was ended because its time was over."""
    out: str
    err: str


class WritableDesktop(LiveDesktop, Protocol):
    """A desktop on which something can be done as well, as a task prepares or finishes it."""

    async def size(self) -> tuple[int, int]:
        """Return the width and the height of the screen, in pixels."""
        ...

    async def put(self, path: str, data: bytes) -> None:
        """Write a file by its path in the home, or a whole path."""
        ...

    async def run(self, command: Sequence[str], *, limit_s: float) -> CommandResult:
        """Run a command on the desktop, and end it after a while; its output is cut at 1 MiB."""
        ...

    async def start(self, command: Sequence[str], *, waits: bool) -> None:
        """Start a program, and wait for a window of it if asked. `EnvError` if none comes."""
        ...

    async def window(self, title: str, do: str, *, strict: bool) -> bool:
        """`raise` or `close` the first window whose title contains, or is, a text; if there is."""
        ...

    async def ask(self, do: str, **arguments: Any) -> None:
        """Move, click, scroll, type or press, as the hands of a desktop do."""
        ...

    async def settle(self) -> bool:
        """Wait for the screen to rest; whether it did."""
        ...


class DesktopPack(TaskPack, Protocol):
    """Tasks of one kind."""

    def scene(self, task: Task) -> DesktopScene:
        """Return the desktop's scene when `task` begins."""
        ...

    async def judge(
        self, task: Task, desktop: WritableDesktop, said: str | None, *, failed: bool
    ) -> TaskVerdict:
        """Say what an episode was worth at its end.

        `said` is the agent's last word, None where it did not get to one; `failed` whether that
        was that the task cannot be done.
        """
        ...
