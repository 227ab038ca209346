"""Recorded conversations as JSON lines: how demonstrations are kept, gold, a policy's and people's.

    {"version": 2,
     "messages": [
       {"role": "user", "content": "What is 6 * 7?"},
       {"role": "assistant", "tool_calls": [
          {"id": "call_0", "name": "multiply", "arguments": {"a": 6, "b": 7}}]},
       {"role": "tool", "tool_call_id": "call_0", "name": "multiply", "content": "42"},
       {"role": "assistant", "content": "42"}],
     "tools": [{"type": "function", "function": {"name": "multiply", ...}}],
     "reward": 1.0}

One such object per line; docs/recordings.md names every key. All but `messages` may be missing; an
unknown key is an error. Pictures lie in files beside the JSON lines, which are read when they are
shown, or are base64 within.
"""

from base64 import b64encode
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    Base64Bytes,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_serializer,
    field_validator,
    model_validator,
)

from agentrl.authoring.gold import GoldEpisode
from agentrl.env import Box
from agentrl.errors import ConfigError
from agentrl.message import Content, Image, Message, ToolCall
from agentrl.runtime.atomic_files import lines_file, name_disk_errors, write_bytes
from agentrl.runtime.image_files import ENDINGS
from agentrl.runtime.json_limits import check_json

VERSION = 2
"""Version of the format. 1 had neither files nor places."""
_FOLDER = "folder"


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RecordedCall(_Closed):
    """One tool call of an assistant message."""

    id: str
    name: str
    arguments: dict[str, Any]

    @field_validator("arguments")
    @classmethod
    def _check_arguments(cls, arguments: dict[str, Any]) -> dict[str, Any]:
        """Refuse what is no JSON: a policy would learn to write it."""
        check_json(arguments)
        return arguments


class RecordedImage(_Closed):
    """A picture, in the line or in a file."""

    image: Base64Bytes | None = None
    file: Path | None = None
    """Path of the picture, in the JSON lines relative to their folder."""
    sha256: str = ""
    """Hash of the file's bytes, in hexadecimal; a file with others is refused."""
    media_type: str = "image/png"

    @field_validator("file")
    @classmethod
    def _resolve_file(cls, file: Path | None, info: Any) -> Path | None:
        return file and Path((info.context or {}).get(_FOLDER, ".")) / file

    @field_serializer("file")
    def _serialize_file(self, file: Path | None, info: Any) -> str | None:
        folder = (info.context or {}).get(_FOLDER)
        if file is None or folder is None:
            return file and str(file)
        whole, folder = file.resolve(), Path(folder).resolve()
        inside = whole.is_relative_to(folder)
        return (whole.relative_to(folder) if inside else whole).as_posix()

    @model_validator(mode="after")
    def _check_source(self) -> "RecordedImage":
        if (self.image is None) == (self.file is None):
            raise ValueError("an image is given either as base64 (`image`) or as a file")
        return self

    @property
    def shown(self) -> Image:
        """Return the picture; `ConfigError` for a file that is gone or another one."""
        if self.image is not None:
            return Image(self.image, self.media_type)
        assert self.file is not None
        try:
            image = Image(self.file.read_bytes(), self.media_type)
        except OSError as error:
            raise ConfigError(
                f"{self.file} is part of a recording but cannot be read ({error.strerror}); keep "
                "the image files next to the JSON lines"
            ) from error
        if self.sha256 not in ("", image.digest):
            raise ConfigError(
                f"{self.file} is not the recorded image: its SHA-256 is {image.digest}, not "
                f"{self.sha256}"
            )
        return image

    @property
    def name(self) -> str:
        """Identifier of the picture, without reading a file."""
        if self.image is not None:
            return Image(self.image).digest
        return self.sha256 or str(self.file and self.file.name)


RecordedContent = str | tuple[str | RecordedImage, ...]


def text_of(content: RecordedContent) -> str:
    """Return the text parts joined, without reading a picture."""
    return (
        content if isinstance(content, str) else "".join(p for p in content if isinstance(p, str))
    )


def names_of(content: RecordedContent) -> list[str]:
    """Return the identifiers of the pictures, without reading one from a file."""
    return [] if isinstance(content, str) else [p.name for p in content if not isinstance(p, str)]


class RecordedPrompt(_Closed):
    """A system or user message."""

    role: Literal["system", "user"]
    content: RecordedContent

    @property
    def message(self) -> Message:
        """Return it as a message."""
        return Message(self.role, _load_images(self.content))


class RecordedAction(_Closed):
    """Answer that the policy is to learn."""

    role: Literal["assistant"]
    content: str = ""
    tool_calls: tuple[RecordedCall, ...] = ()
    thought: str = ""
    """Thought before the answer, where that was recorded."""
    instruction: str = ""
    """Instruction for this step, where somebody wrote it down. Nobody is shown it."""
    places: dict[int, Box] = Field(default_factory=dict[int, Box])
    """Boxes of the elements that it could point at, by their numbers."""

    @property
    def message(self) -> Message:
        """Return it as a message, which begins with the thought."""
        calls = tuple(ToolCall(c.id, c.name, c.arguments) for c in self.tool_calls)
        text = "\n".join(part for part in (self.thought, self.content) if part)
        return Message("assistant", text, tool_calls=calls)


class RecordedAnswer(_Closed):
    """A tool's answer to one call."""

    role: Literal["tool"]
    content: RecordedContent
    tool_call_id: str
    name: str

    @property
    def message(self) -> Message:
        """Return it as a message."""
        return Message(
            "tool", _load_images(self.content), tool_call_id=self.tool_call_id, name=self.name
        )


RecordedMessage = Annotated[
    RecordedPrompt | RecordedAction | RecordedAnswer, Field(discriminator="role")
]


class ConversationRecording(_Closed):
    """One recorded conversation: it opens with a prompt, and assistants never follow each other."""

    messages: tuple[RecordedMessage, ...]
    tools: tuple[dict[str, Any], ...] = ()
    """JSON schemas of the functions it could call."""
    reward: float | None = Field(default=None, allow_inf_nan=False)
    version: int = Field(default=VERSION, ge=1)
    task: str = ""
    """The id of the task in its environment, where it has one."""
    player: str = ""
    """Player of the conversation: `gold`, `human`, the name of a run."""

    @field_validator("version")
    @classmethod
    def _check_version(cls, version: int) -> int:
        if version > VERSION:
            raise ValueError(
                f"the recording has version {version}, but this agentrl reads {VERSION}"
            )
        return version

    @model_validator(mode="after")
    def _check_roles(self) -> "ConversationRecording":
        roles = [message.role for message in self.messages]
        if "assistant" not in roles:
            raise ValueError("there is no assistant message to train on; record one")
        if roles[0] == "assistant":
            raise ValueError("it starts with an assistant message; record the message it answers")
        for at, pair in enumerate(pairwise(roles)):
            if pair == ("assistant", "assistant"):
                raise ValueError(
                    f"messages {at} and {at + 1} are both from the assistant; join them, or record "
                    "the message in between"
                )
        return self


def read_recordings(
    path: Path, *, minimum_reward: float | None = None
) -> tuple[ConversationRecording, ...]:
    """Return the recordings of a JSONL file, in order; empty lines are skipped.

    With `minimum_reward`, those that earned less, or nothing known, are left out. Raises
    `ConfigError` naming the file, the line and the key for anything that is not a recording.
    """
    if not path.is_file():
        raise ConfigError(f"{path} is not a file; give a JSONL file of recorded conversations")
    recordings = tuple(_parse_lines(path))
    if minimum_reward is None:
        return recordings
    return tuple(r for r in recordings if r.reward is not None and r.reward >= minimum_reward)


def write_recordings(
    path: Path, recordings: Iterable[ConversationRecording], *, picture_files: bool = False
) -> int:
    """Write a JSONL file that `read_recordings` reads back as it was; return how many.

    It is there whole or not at all, and holds one recording at a time. With `picture_files`,
    pictures of the lines become files in a folder beside it.
    """
    count = 0
    with lines_file(path) as write:
        for recording in recordings:
            write(line_of(path, recording, picture_files=picture_files))
            count += 1
    return count


def append_recording(path: Path, recording: ConversationRecording) -> None:
    """Add one to a JSONL file, whose pictures become files; it is made where it is not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with name_disk_errors(path), path.open("a", encoding="utf-8") as file:
        file.write(line_of(path, recording, picture_files=True))


def line_of(path: Path, recording: ConversationRecording, *, picture_files: bool = False) -> str:
    """Return a recording as a line of a JSONL file; with `picture_files`, write its pictures."""
    if picture_files:
        keep = partial(_write_image_file, path.with_suffix(".images"))
        recording = recording.model_copy(
            update={"messages": tuple(_map_images(m, keep) for m in recording.messages)}
        )
    record = recording.model_copy(update={"version": VERSION})
    text = record.model_dump_json(exclude_defaults=True, context={_FOLDER: path.parent})
    return f'{{"version":{VERSION},{text[1:]}\n'


def recording_of(episode: GoldEpisode, *, player: str = "gold") -> ConversationRecording:
    """Return the recording of a gold episode, without what followed its last action."""
    places = iter(episode.places)
    messages: list[RecordedMessage] = [
        record_message(message, next(places, {}) if message.role == "assistant" else {})
        for message in episode.messages
    ]
    while messages and messages[-1].role != "assistant":
        messages.pop()
    tools = tuple(dict(tool) for tool in episode.opening.tools or ())
    return ConversationRecording(
        messages=tuple(messages),
        tools=tools,
        reward=episode.reward,
        task=episode.task.id,
        player=player,
    )


def record_message(message: Message, places: Mapping[int, Box] | None = None) -> RecordedMessage:
    """Return a message as it is recorded; `places` are those that an assistant could point at."""
    match message.role:
        case "assistant":
            calls = tuple(
                RecordedCall(id=c.id, name=c.name, arguments=dict(c.arguments))
                for c in message.tool_calls
            )
            return RecordedAction(
                role="assistant",
                content=message.text,
                tool_calls=calls,
                places=dict(places or {}),
            )
        case "tool":
            return RecordedAnswer(
                role="tool",
                content=_record_content(message.content),
                tool_call_id=message.tool_call_id or "",
                name=message.name or "",
            )
        case role:
            return RecordedPrompt(role=role, content=_record_content(message.content))


def _load_images(content: RecordedContent) -> Content:
    if isinstance(content, str):
        return content
    return tuple(p if isinstance(p, str) else p.shown for p in content)


def _record_content(content: Content) -> RecordedContent:
    if isinstance(content, str):
        return content
    # The field takes base64, as in the file.
    return tuple(
        part
        if isinstance(part, str)
        else RecordedImage(image=b64encode(part.data), media_type=part.media_type)
        for part in content
    )


def _map_images(
    message: RecordedMessage, change: Callable[[RecordedImage], RecordedImage]
) -> RecordedMessage:
    if isinstance(message, RecordedAction) or isinstance(message.content, str):
        return message
    content = tuple(p if isinstance(p, str) else change(p) for p in message.content)
    return message.model_copy(update={"content": content})


def _write_image_file(folder: Path, picture: RecordedImage) -> RecordedImage:
    if picture.file is not None:
        return picture
    image = picture.shown
    file = folder / f"{image.digest}.{ENDINGS.get(image.media_type, 'bin')}"
    if not file.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        write_bytes(file, image.data)
    return RecordedImage(file=file, sha256=image.digest, media_type=image.media_type)


def _parse_lines(path: Path) -> Iterator[ConversationRecording]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            line = line.removeprefix(BOM_UTF8) if number == 1 else line
            if not line.strip():
                continue
            try:
                yield ConversationRecording.model_validate_json(
                    line, context={_FOLDER: path.parent}
                )
            except ValidationError as error:
                # That pictures are no text is told before what is wrong with them.
                every = error.errors()
                detail = next((one for one in every if one["type"] != "string_type"), every[0])
                where = "".join(f"{part}." for part in detail["loc"])[:-1]
                fault = detail["msg"].removeprefix("Value error, ")
                text = f"{where}: {fault}" if where else fault
                raise ConfigError(f"{path}, line {number}: {text}") from error
