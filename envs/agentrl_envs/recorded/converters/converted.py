"""Conversion of one trajectory, and the parts of recordings that converters share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.env import Box
from agentrl.errors import ConfigError
from agentrl.learn.recording import (
    RecordedAction,
    RecordedAnswer,
    RecordedCall,
    RecordedContent,
    RecordedImage,
    RecordedPrompt,
)

MEDIA_TYPES = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".webp": "image/webp",
}


@dataclass(frozen=True, slots=True)
class ConversionResult:
    """One trajectory: as a recording, or why it cannot be one."""

    name: str
    recording: Any
    """A `ConversationRecording`, or a text."""


class UnusableTrajectory(ValueError):
    """This trajectory cannot be converted; the message says why."""


def content_of(text: str, picture: Path | None) -> RecordedContent:
    """Return a text with a picture, read when shown; raise `UnusableTrajectory` without one."""
    if picture is None:
        return text
    if not picture.is_file():
        raise UnusableTrajectory(f"the screenshot {picture} does not exist")
    media_type = MEDIA_TYPES.get(picture.suffix.lower())
    if media_type is None:
        raise UnusableTrajectory(
            f"{picture} is not an image in a supported format: {', '.join(MEDIA_TYPES)}"
        )
    return (text, RecordedImage(file=picture.absolute(), media_type=media_type))


def ask_task(content: RecordedContent) -> RecordedPrompt:
    """Return the opening message."""
    return RecordedPrompt(role="user", content=content)


def make_turn(
    tool: str,
    calls: Sequence[Mapping[str, Any]],
    *,
    thought: str = "",
    instruction: str = "",
    places: Mapping[int, Box] | None = None,
) -> RecordedAction:
    """Return a turn of these calls of one tool."""
    tool_calls = [
        RecordedCall(id=f"call_{i}", name=tool, arguments=dict(arguments))
        for i, arguments in enumerate(calls)
    ]
    return RecordedAction(
        role="assistant",
        tool_calls=tuple(tool_calls),
        thought=thought,
        instruction=instruction,
        places=dict(places or {}),
    )


def make_answers(tool: str, calls: int, content: RecordedContent) -> list[RecordedAnswer]:
    """Return the answers to so many calls of one turn; the last one shows the screen."""
    return [
        RecordedAnswer(
            role="tool",
            content=content if i == calls - 1 else "ok",
            tool_call_id=f"call_{i}",
            name=tool,
        )
        for i in range(calls)
    ]


def require_files(found: Sequence[Path], where: Path, what: str) -> Sequence[Path]:
    """Return the found paths; `ConfigError` where there are none."""
    if not found:
        raise ConfigError(f"{where} has {what}")
    return found
