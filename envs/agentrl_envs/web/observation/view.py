"""Settings, access and result of a look at a page: the values between a page and an agent."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

from agentrl.errors import ConfigError
from agentrl.message import Image
from agentrl_envs.accessibility.node import AccessibilityNode

Kind = Literal["axtree", "dom", "text", "screenshot", "marks"]
"""`axtree`: a line per element that matters, with ids. `dom`: the page's markup, pruned, with ids.
`text`: the visible text. `screenshot`: the viewport as a picture. `marks`: the picture with the
ids drawn onto the elements."""

KINDS: tuple[Kind, ...] = get_args(Kind)


class PageProbe(Protocol):
    """A way into one page, past its own scripts.

    `HOOK` of `browser.page` has run in the page's own world before the page's scripts, and its
    `OBSERVE` in the isolated world. Where a document serves a new episode without being loaded
    again, the environment runs `forget` first, and ids begin at 1.
    """

    async def run(self, function: str, argument: Any = None) -> Any:
        """Call a function of `observe.js` by its name, in the isolated world it was loaded into.

        The argument and the result are JSON values. Raises `EnvError` where the page is gone or
        does not answer in time.
        """
        ...

    async def screenshot(self) -> bytes:
        """Return the viewport as a PNG; raises as `run` does."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PageObservationOptions:
    """Settings of an observation."""

    kinds: tuple[Kind, ...] = ("axtree",)
    """In the order in which they are shown."""
    max_nodes: int = 400
    """Lines of the tree and elements of the markup; the rest is counted, not shown."""
    max_characters: int = 16_000
    """Length of each text; the rest is counted, not shown."""
    max_name_characters: int = 120
    """Of one name or piece of text; of what is in a field, four times as many."""
    boxes: bool = False
    """Say of every element in the tree where it is; otherwise only of drawn shapes and boxes
    without a name."""
    deadline_s: float = 5.0
    """Deadline of one look."""

    def __post_init__(self) -> None:
        check_kinds(self.kinds, KINDS)
        check_caps(self, "max_nodes", "max_characters", "max_name_characters", "deadline_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class PageView:
    """Result of one look at a page."""

    url: str
    title: str
    text: str
    images: tuple[Image, ...] = ()
    nodes: tuple[AccessibilityNode, ...] = ()
    """The lines of the tree, whether it was asked for as text or not."""
    truncated: bool = False
    """Whether a cap left something out; the text then says how much."""


def check_kinds(kinds: Sequence[str], known: Sequence[str]) -> None:
    """Raise `ConfigError` for a kind of observation that there is not, and for none at all."""
    if not kinds or any(kind not in known for kind in kinds):
        raise ConfigError(
            f"observations must be one or more of {', '.join(known)}, got {list(kinds)}"
        )


def check_caps(wants: object, *names: str) -> None:
    """Raise `ConfigError` for a cap that lets nothing through."""
    for name in names:
        if (value := getattr(wants, name)) <= 0:
            raise ConfigError(f"{name} must be above 0, got {value}")
