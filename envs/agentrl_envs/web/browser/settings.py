"""Settings of browsers: one value, shared by every environment that shares the browsers."""

from dataclasses import dataclass
from typing import Literal, get_args

from agentrl.errors import ConfigError
from agentrl_envs.web.observation.view import check_caps

Isolation = Literal["bubblewrap", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrowserSettings:
    """Settings of a pool of browsers."""

    isolation: Isolation = "bubblewrap"
    """`bubblewrap`: in namespaces of its own, with no network interface and no file of this
    machine but `/usr`. `none`: a plain process of this user; for pages that are trusted."""
    executable: str = ""
    """Chromium; empty looks for it."""
    browsers: int = 1
    """Processes that episodes are spread over. One that dies takes its episodes with it."""
    episodes: int = 16
    """At once in one browser; what does not fit waits. As many pages wait for their next one."""
    warm: int = 2
    """Empty pages that a browser keeps ready."""
    tabs: int = 4
    """That an episode may have open besides its first one."""
    memory_bytes: int = 4 * 2**30
    """Of one browser with everything it starts, where this machine permits cgroups."""
    recycle_after: int = 1000
    """Episodes after which a browser is replaced by a fresh one."""
    recycle_bytes: int = 3 * 2**30
    """Memory, looked at between episodes, past which a browser is replaced by a fresh one."""
    call_s: float = 20.0
    """For one question to a page. A page that is busy for longer is lost."""
    settle_s: float = 5.0
    """For a page to come to rest after an action; an observation is made then in any case."""
    still_s: float = 0.3
    """For the drawing of a page that has loaded to come to rest, within `settle_s`."""
    open_s: float = 60.0
    """For a browser to start, and for a page to come free."""

    def __post_init__(self) -> None:
        if self.isolation not in get_args(Isolation):
            raise ConfigError(
                f"isolation must be one of {', '.join(get_args(Isolation))}, got {self.isolation!r}"
            )
        check_caps(self, "browsers", "episodes", "call_s", "settle_s", "open_s")
        check_caps(self, "memory_bytes", "recycle_bytes", "recycle_after")
        for name in ("warm", "still_s", "tabs"):
            if (value := getattr(self, name)) < 0:
                raise ConfigError(f"{name} must not be negative, got {value}")
