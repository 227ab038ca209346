"""A kind of task on a desktop: what is there, what is asked, how it is judged, who can do it."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from random import Random

from agentrl_envs.gui.world import LiveDesktop
from agentrl_envs.templates import Wanted
from agentrl_envs.web.sites.play import Player

Check = Callable[[LiveDesktop, Wanted, str], Awaitable[bool]]
"""Whether the desktop is as it must be, and the agent's last word, `""` for none, right."""


@dataclass(frozen=True, slots=True)
class DesktopTemplate:
    """One kind of task."""

    name: str
    level: int
    """1 to 3: how many steps and conditions."""
    make: Callable[[Random], Wanted]
    """Choose a task. Raises `UnfitChoice` to be asked again with another seed."""
    play: Player
    check: Check
    _: KW_ONLY
    program: str
    """Program of the task, for reports: `form`, `editor`, `calculator` and so on."""
    programs: Callable[[Wanted], Sequence[Sequence[str]]]
    """The commands that put the programs on the desktop."""
    files: Callable[[Wanted], Mapping[str, bytes]] = lambda wanted: {}
    runs_code: bool = False
    """Whether the agent can run code in it; see `DesktopScene`."""
