"""A chat format of one token per letter, for policies that are played from a script."""

from collections.abc import Sequence
from dataclasses import dataclass

from agentrl.chat.renderer import TokenSegment
from agentrl.env import Action, ToolSchema, say
from agentrl.message import Message

END = 0
"""Ends a turn of the policy."""


@dataclass(frozen=True)
class LetterChat:
    """A turn begins with the token `turn` and ends with `END`; a cut one is not closed."""

    turn: int = ord(">")
    between: str = ""
    """Stands between two messages."""

    @property
    def stop_token_ids(self) -> frozenset[int]:
        """The one token that ends a turn."""
        return frozenset({END})

    def opening(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema]
    ) -> Sequence[TokenSegment]:
        """Show the messages."""
        return [
            TokenSegment("prompt", (*ids(self.between.join(m.text for m in messages)), self.turn))
        ]

    def reply(
        self,
        messages: Sequence[Message],
        *,
        ended: bool,
        tools: Sequence[ToolSchema] | None = None,
    ) -> Sequence[TokenSegment]:
        """Show what the environment answered."""
        text = "".join(m.text for m in messages)
        return [TokenSegment("tool", ids(text)), TokenSegment("template", (self.turn,))]

    def parse(self, token_ids: Sequence[int]) -> Action:
        """Read a turn."""
        return say(said(token_ids))


def ids(text: str) -> tuple[int, ...]:
    """Return the tokens of a text."""
    return tuple(map(ord, text))


def said(token_ids: Sequence[int]) -> str:
    """Return the text of a turn."""
    return "".join(chr(token) for token in token_ids if token != END)
