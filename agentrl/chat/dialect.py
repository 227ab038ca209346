"""A dialect: how tool calls are written in an assistant turn. Parser and template side by side."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from agentrl.env import Action
from agentrl.message import ToolCall

_DIALECTS = Path(__file__).parent / "dialects"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One way to write tool calls, as data; `docs/chat.md` says how to add one."""

    name: str
    """Of the dialect and of its shipped template, `dialects/<name>.jinja`."""
    parse: Callable[[str, int], Action]
    """Read a turn; calls are looked for from the given position on.

    Never raises, for any text. What looks like a call and cannot be read is an entry of
    `Action.malformed` that says what was wrong and what form is wanted.
    """
    write: Callable[[str, Sequence[ToolCall]], str]
    """Return the turn that says a text and makes calls; `parse` reads it back."""
    special_tokens: tuple[str, ...]
    """What the shipped template writes, in the order a new tokenizer numbers them."""
    end_of_turn: str
    """The one of them that ends a turn in the shipped template."""
    pad: str
    image_tokens: tuple[str, str, str] | None = None
    """What the shipped template writes for an image, the one in the middle for the image itself; a
    new tokenizer has them if its policy sees."""
    begin_of_text: str | None = None
    also_stops: tuple[str, ...] = ()
    """Tokens with which policies of this dialect end a turn too, where a tokenizer has them."""

    @property
    def template(self) -> str:
        """Return the Jinja source of the shipped template."""
        return _source(self.name)


@cache
def _source(name: str) -> str:
    return (_DIALECTS / f"{name}.jinja").read_text(encoding="utf-8")
