"""Chat format as an episode uses it: messages to tokens and back."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from agentrl.env import Action, ToolSchema
from agentrl.message import Image, Message
from agentrl.trajectory import Source


@dataclass(frozen=True, slots=True)
class TokenSegment:
    """A run of tokens from one source."""

    source: Source
    token_ids: tuple[int, ...]
    images: tuple[Image, ...] = ()
    """Those whose tokens are among them."""
    image_spans: tuple[tuple[int, int], ...] = ()
    """First and one past the last of the tokens of each."""


class ChatRenderer(Protocol):
    """Messages to tokens and back, incrementally; `agentrl.chat` implements it."""

    @property
    def stop_token_ids(self) -> frozenset[int]:
        """Token ids that end an assistant turn."""
        ...

    def opening(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema]
    ) -> Sequence[TokenSegment]:
        """Render the prompt of an episode."""
        ...

    def reply(
        self,
        messages: Sequence[Message],
        *,
        ended: bool,
        tools: Sequence[ToolSchema] | None = None,
    ) -> Sequence[TokenSegment]:
        """Render what follows a sampled turn, up to where the next one begins."""
        ...

    def parse(self, token_ids: Sequence[int]) -> Action:
        """Read a sampled turn."""
        ...
