"""Messages: what an environment and an agent say to each other. Authors never see token ids."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]
"""Speaker of a message."""


@dataclass(frozen=True, slots=True)
class Image:
    """An encoded picture, named by its content."""

    data: bytes = field(repr=False)
    """The file's bytes, encoded as `media_type` says."""
    media_type: str = "image/png"
    """MIME type."""

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the bytes, in hexadecimal."""
        return hashlib.sha256(self.data).hexdigest()


@dataclass(frozen=True, slots=True)
class ImageSpan:
    """An image, and the places of its tokens in a sequence of tokens."""

    image: Image
    """The picture."""
    start: int
    """Place of its first token."""
    stop: int
    """One past its last token."""

    def moved(self, by: int) -> "ImageSpan":
        """Return the same image so many places further on.

        Args:
            by: Number of tokens; negative moves it towards the beginning.
        """
        return ImageSpan(self.image, self.start + by, self.stop + by)


Content = str | tuple[str | Image, ...]
"""Plain text, or text and images in reading order."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call that the agent asked for."""

    id: str
    """Unique within its message; the answer's `tool_call_id`."""
    name: str
    """Name of the tool."""
    arguments: Mapping[str, Any]
    """Values by parameter, as JSON has them: nothing is checked or converted yet."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation."""

    role: Role
    """Speaker."""
    content: Content
    """Text, or text and images."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Calls, in the order in which they are run. Only on `assistant` messages."""
    tool_call_id: str | None = None
    """Id of the call that this answers. Only on `tool` messages."""
    name: str | None = None
    """Name of the tool that answers. Only on `tool` messages."""

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
