"""Conversion of one trajectory, and the parts of recordings that converters share."""

import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from agentrl.env import Box
from agentrl.errors import ConfigError
from agentrl.learn.recording import (
    ConversationRecording,
    RecordedAction,
    RecordedAnswer,
    RecordedCall,
    RecordedContent,
    RecordedImage,
    RecordedPrompt,
)
from agentrl.runtime.json_limits import JsonLimitError, JsonLimits, read_json

MEDIA_TYPES = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".webp": "image/webp",
}
_LIMITS = JsonLimits(text_bytes=2**27, values=5_000_000)
"""Of one trajectory, or one line of it: trees of a screen have thousands of values."""
_TYPES = {str: "a text", list: "a list", dict: "an object"}
_DATA_ERRORS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    OSError,
    RecursionError,
    TypeError,
    ValueError,
)
_REASON_CHARS = 200


@dataclass(frozen=True, slots=True)
class ConversionResult:
    """One trajectory: as a recording, or why it cannot be one."""

    name: str
    recording: Any
    """A `ConversationRecording`, or a text."""


class UnusableTrajectory(ValueError):
    """This trajectory cannot be converted; the message says why."""


def convert_trajectory(name: str, record: Callable[[], ConversationRecording]) -> ConversionResult:
    """Return the recording that `record` makes of a trajectory, or why its data make none.

    A recording is one that can be written and read again.
    """
    try:
        recording = record()
        ConversationRecording.model_validate_json(recording.model_dump_json())
    except _DATA_ERRORS as error:
        return ConversionResult(_print_line(name), _shorten(_print_line(_describe(error))))
    return ConversionResult(_print_line(name), recording)


def _describe(error: Exception) -> str:
    match error:
        case ValidationError():
            fault = error.errors()[0]
            where = ".".join(map(str, fault["loc"]))
            return f"{where}: {fault['msg'].removeprefix('Value error, ')}"
        case UnusableTrajectory():
            return str(error)
        case KeyError():
            return f"it has no {error}"
        case OSError():
            return f"{error.filename or 'a file'} cannot be read: {error.strerror}"
        case RecursionError():
            return "its data are nested too deep"
        case _:
            return f"its data have another form than expected: {error}"


def _print_line(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))


def _shorten(text: str) -> str:
    """Return a text without its middle where it is too long: both ends say what is wrong."""
    half = _REASON_CHARS // 2
    return text if len(text) <= _REASON_CHARS else f"{text[: half - 1]}…{text[-half:]}"


def read_object(text: str | bytes, what: str) -> dict[str, Any]:
    """Return the object of a JSON text; raise `UnusableTrajectory` for anything else."""
    try:
        value = read_json(text, _LIMITS)
    except JsonLimitError as error:
        raise UnusableTrajectory(f"{what}: {error}") from error
    return require_type(value, dict, what)


def require_type(value: Any, kind: type, what: str) -> Any:
    """Return a text, a list or an object; raise `UnusableTrajectory` for another type."""
    if not isinstance(value, kind):
        raise UnusableTrajectory(f"{what} is {reprlib.repr(value)}, but must be {_TYPES[kind]}")
    return value


def require_number(value: Any, what: str) -> Any:
    """Return a finite number; raise `UnusableTrajectory` for anything else."""
    if isinstance(value, bool) or not (isinstance(value, int | float) and isfinite(value)):
        raise UnusableTrajectory(f"{what} is {reprlib.repr(value)}, but must be a finite number")
    return value


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
