"""The contract between the browser and what is behind it: one world per episode.

A browser has no network. Every request of its pages is put to the world of its episode, which
answers it out of its own state; what it does not answer does not exist.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from agentrl.env import Info


@dataclass(frozen=True, slots=True, kw_only=True)
class WebRequest:
    """One request of a page."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebResponse:
    """Response that the page gets."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    body: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteVerdict:
    """Reward of an episode so far."""

    reward: float
    """Paid with the step it is given in: 0 until there is something to pay."""
    done: bool
    info: Info = field(default_factory=dict[str, Any])


class LivePage(Protocol):
    """The page an episode is on, for worlds whose state lives in the page."""

    @property
    def url(self) -> str:
        """Address of the page."""
        ...

    async def evaluate(self, script: str, argument: Any = None) -> Any:
        """Call a JavaScript function of one argument in the page's own world.

        Raises `EnvError` where the page is gone, busy beyond its deadline, or the script throws.
        """
        ...


class EpisodeSite(Protocol):
    """Site that one episode's browser sees, and the judge of the episode."""

    start_url: str
    """Address where the episode begins."""
    origins: tuple[str, ...]
    """Origins that the agent may visit, as `scheme://host[:port]`; that of `start_url` included."""
    reusable: bool
    """Whether a page that is on `start_url` may serve another episode of the same kind without
    loading it again; `begin` then puts everything back."""

    async def answer(self, request: WebRequest) -> WebResponse | None:
        """Answer a request to one of `origins`; None refuses it."""
        ...

    async def begin(self, page: LivePage) -> str:
        """Start the episode on a page that has loaded `start_url`; return the agent's goal."""
        ...

    async def judge(self, page: LivePage, said: str | None) -> SiteVerdict:
        """Say what the episode is worth after an action; `said` is the agent's last word, if any.

        Called after every action, and once with the final answer.
        """
        ...

    def ahead(self) -> "EpisodeSite | None":
        """Return a world with which `start_url` can be loaded before there is an episode.

        None where what loads depends on the episode, or loading it does something. The world is
        closed when the page is there; the page then waits, without answers, for an episode of the
        same `start_url`, whose `begin` makes it the episode's.
        """
        ...

    def copy(self) -> Self | None:
        """Return an independent copy with the state it has now, or None if its state is elsewhere.

        The browser then goes to the same URL with the same cookies and storage, and the page must
        look the same. Where None is returned a fork is made by replay.
        """
        ...

    async def close(self) -> None:
        """Release everything; idempotent."""
        ...
