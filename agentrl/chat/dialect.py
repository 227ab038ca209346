"""A dialect: how tool calls are written in an assistant turn. Parser and template side by side."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from agentrl.env import Action
from agentrl.errors import ConfigError
from agentrl.message import ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallDialect:
    """One way to write tool calls, as data; `docs/chat.md` says how to add one."""

    name: str
    """No other dialect has it."""
    parse: Callable[[str, int], Action]
    """Read a turn; calls are looked for from the given position on.

    Never raises, for any text. What looks like a call and cannot be read is an entry of
    `Action.malformed` that says what was wrong and what form is wanted.
    """
    write: Callable[[str, Sequence[ToolCall]], str]
    """Return the turn that says a text and makes calls; `parse` reads it back."""
    begin: Callable[[str], str] | None = None
    """Return the beginning of a turn that calls this tool, up to the arguments. With no name it is
    that of any call, up to the name. A turn that begins so is a call or malformed. None where no
    turn can be made to call: such requests of programs are refused."""
    adapt: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    """Return a message as the templates of these models want it, such as with ids of their form."""
    text_arguments: bool = False
    """True where arguments are written without types; `parse` reads each as text."""
    begins_next: tuple[str, ...] = ()
    """Tokens that end a turn by beginning what follows it, such as the role of the next message."""
    folder: Path | None = None
    """Folder of its own template, `<name>.jinja`; None for a dialect of models that bring theirs.
    What follows is only for making a tokenizer that goes with that template."""
    special_tokens: tuple[str, ...] = ()
    """Special tokens that the template writes, in the order a new tokenizer numbers them."""
    end_of_turn: str = ""
    """The one of them that ends a turn."""
    pad: str = ""
    image_tokens: tuple[str, str, str] | None = None
    """Tokens that the template writes for an image, the one in the middle for the image itself. A
    new tokenizer has them if its policy sees."""
    begin_of_text: str | None = None
    also_stops: tuple[str, ...] = ()
    """Tokens with which policies of this dialect end a turn too, where a tokenizer has them."""

    @property
    def template(self) -> str:
        """Return the Jinja source of its own template; `ConfigError` where it has none."""
        if self.folder is None:
            raise ConfigError(
                f"the dialect {self.name!r} has no template of its own; set policy.template to a "
                "Jinja file, or remove it to use the tokenizer's template"
            )
        return _source(self.folder / f"{self.name}.jinja")


@cache
def _source(file: Path) -> str:
    return file.read_text(encoding="utf-8")
