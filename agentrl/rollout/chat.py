"""Chat format as an episode uses it: messages to tokens and back."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from agentrl.env import Action, ToolSchema
from agentrl.message import Image, Message
from agentrl.trajectory import Source


@runtime_checkable
class TokenSegment(Protocol):
    """A run of token ids from one source."""

    @property
    def source(self) -> Source:
        """Source of the tokens."""
        ...

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The tokens."""
        ...

    @property
    def images(self) -> tuple[Image, ...]:
        """The images whose placeholders are among the tokens."""
        ...

    @property
    def image_spans(self) -> tuple[tuple[int, int], ...]:
        """First and one past the last of the tokens of each image."""
        ...


class Chat(Protocol):
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
