"""A window over images: the oldest leave the context, and a note stands in the place of each."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from agentrl.errors import ConfigError
from agentrl.message import ImageSpan

if TYPE_CHECKING:
    from agentrl.chat.renderer import ChatRenderer


@dataclass(frozen=True, slots=True)
class ImageNote:
    """Note that stands in the place of an image."""

    token_ids: tuple[int, ...]
    before: int
    """Number of tokens a template writes right before those of an image, and belong to it."""
    after: int


@runtime_checkable
class ImageNoteRenderer(Protocol):
    """A chat format that can note that there was an image."""

    @property
    def image_note(self) -> ImageNote:
        """Return the note."""
        ...


def drop_images(
    chat: "ChatRenderer", token_ids: Sequence[int], spans: Sequence[ImageSpan], *, count: int
) -> tuple[tuple[int, ...], tuple[ImageSpan, ...]]:
    """Return a context with a note in the place of its first `count` images, and the others.

    Raises `ConfigError` for a chat format that has no note.
    """
    if not isinstance(chat, ImageNoteRenderer):
        raise ConfigError(
            f"rollout.images is set, but {type(chat).__name__} cannot replace an image with a "
            "note; add a property image_note to it, or keep all images"
        )
    note = chat.image_note
    tokens: list[int] = []
    offset = 0
    for span in spans[:count]:
        tokens += token_ids[offset : span.start - note.before]
        tokens += note.token_ids
        offset = span.stop + note.after
    moved = len(tokens) - offset
    return (*tokens, *token_ids[offset:]), tuple(span.moved(moved) for span in spans[count:])
