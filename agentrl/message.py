"""Messages: what an environment and an agent say to each other. Authors never see token ids."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class Image:
    """An encoded picture, named by its content."""

    data: bytes = field(repr=False)
    media_type: str = "image/png"

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the bytes, in hexadecimal."""
        return hashlib.sha256(self.data).hexdigest()


@dataclass(frozen=True, slots=True)
class ImageSpan:
    """An image, and where its tokens stand in a sequence of tokens."""

    image: Image
    start: int
    """Place of its first token."""
    stop: int
    """One past its last token."""

    def moved(self, by: int) -> "ImageSpan":
        """Return the same image so many places further on."""
        return ImageSpan(self.image, self.start + by, self.stop + by)


Content = str | tuple[str | Image, ...]
"""Plain text, or text and images in reading order."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call the agent asked for. `id` is unique within its message."""

    id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation."""

    role: Role
    content: Content
    tool_calls: tuple[ToolCall, ...] = ()
    """Only on `assistant` messages."""
    tool_call_id: str | None = None
    """Only on `tool` messages: the call this answers."""
    name: str | None = None
    """Only on `tool` messages: the tool that answers."""

    @property
    def text(self) -> str:
        """Return the text parts joined, without images."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part for part in self.content if isinstance(part, str))

    @property
    def images(self) -> tuple[Image, ...]:
        """Return the images in reading order."""
        if isinstance(self.content, str):
            return ()
        return tuple(part for part in self.content if isinstance(part, Image))
