"""Settings of desktops: one value, shared by every environment that shares them."""

from dataclasses import dataclass
from typing import Literal, get_args

from agentrl.errors import ConfigError
from agentrl_sandbox.recipe import RECIPES

Backend = Literal["bubblewrap", "docker"]

_POSITIVE = (
    *("desktops", "memory_bytes", "processes", "recycle_after"),
    *("call_s", "settle_s", "open_s", "start_s"),
)
_NOT_NEGATIVE = ("warm", "staged", "idle_s", "still_s")
_SIDES = range(64, 8193)


@dataclass(frozen=True, slots=True, kw_only=True)
class DesktopSettings:
    """Settings of a pool of desktops."""

    backend: Backend = "bubblewrap"
    """`bubblewrap` runs this machine's own programs, `docker` those of an image in a container."""
    image: str = RECIPES["desktop"].tag
    """With `docker`: made by `agentrl image build desktop`."""
    width: int = 1024
    """Width of the screen, in pixels."""
    height: int = 768
    desktops: int = 4
    """At once; who wants one more waits."""
    warm: int = 1
    """Desktops that are kept ready beside those in use, within `desktops`."""
    staged: int = 1
    """Desktops at most that wait with the programs of an episode to come, within `desktops`."""
    idle_s: float = 60.0
    """After which a desktop that nobody took again is ended, all but `warm` of them, and one that
    waits for an episode which is not expected any more."""
    memory_bytes: int = 2**30
    """Of one desktop with every program on it, where this machine permits cgroups."""
    processes: int = 1000
    """On one desktop at most, counting threads; the browser has some two hundred."""
    recycle_after: int = 20
    """Episodes after which a desktop is replaced; one whose programs could run code always is."""
    call_s: float = 20.0
    """For one question to a desktop. One that does not answer is lost."""
    settle_s: float = 5.0
    """For the screen to come to rest after an action; an observation is made then in any case."""
    still_s: float = 0.2
    """Timers beyond it are not waited for; where they cannot be read, nothing may change for as
    long."""
    open_s: float = 60.0
    """For a desktop to start, and for one to come free."""
    start_s: float = 30.0
    """For a program to show its first window."""

    def __post_init__(self) -> None:
        if self.backend not in get_args(Backend):
            raise ConfigError(
                f"desktop.backend must be one of {', '.join(get_args(Backend))}, "
                f"got {self.backend!r}"
            )
        for name in ("width", "height"):
            if (value := getattr(self, name)) not in _SIDES:
                raise ConfigError(
                    f"{name} must be from {_SIDES.start} to {_SIDES.stop - 1} pixels, got {value}"
                )
        for name in _POSITIVE:
            if (value := getattr(self, name)) <= 0:
                raise ConfigError(f"{name} must be above 0, got {value}")
        for name in _NOT_NEGATIVE:
            if (value := getattr(self, name)) < 0:
                raise ConfigError(f"{name} must not be negative, got {value}")
