"""Recorded conversations as JSON lines: how users bring demonstrations of their own.

    {"messages": [
       {"role": "user", "content": "What is 6 * 7?"},
       {"role": "assistant", "tool_calls": [
          {"id": "call_0", "name": "multiply", "arguments": {"a": 6, "b": 7}}]},
       {"role": "tool", "tool_call_id": "call_0", "name": "multiply", "content": "42"},
       {"role": "assistant", "content": "42"}],
     "tools": [{"type": "function", "function": {"name": "multiply", ...}}],
     "reward": 1.0}

One such object per line. `tools` and `reward` may be missing; an unknown key is an error. What a
user, the system or a tool says may show pictures: `content` is then a list of texts and of
`{"image": "<base64>", "media_type": "image/png"}`. An assistant message may have a `thought` of its
own, which is said before its content.
"""

from base64 import b64encode
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Base64Bytes, BaseModel, ConfigDict, Field, ValidationError, model_validator

from agentrl.atomic import write_text
from agentrl.errors import ConfigError
from agentrl.gold import GoldEpisode
from agentrl.message import Content, Image, Message, ToolCall


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RecordedCall(_Closed):
    """One tool call of an assistant message."""

    id: str
    name: str
    arguments: dict[str, Any]


class RecordedImage(_Closed):
    """A picture."""

    image: Base64Bytes
    media_type: str = "image/png"


RecordedContent = str | tuple[str | RecordedImage, ...]


class Said(_Closed):
    """A system or user message."""

    role: Literal["system", "user"]
    content: RecordedContent

    @property
    def message(self) -> Message:
        """Return it as a message."""
        return Message(self.role, _shown(self.content))


class AssistantSaid(_Closed):
    """What the policy is to learn."""

    role: Literal["assistant"]
    content: str = ""
    tool_calls: tuple[RecordedCall, ...] = ()
    thought: str = ""
    """What it thought before, where that was recorded."""

    @property
    def message(self) -> Message:
        """Return it as a message, which begins with the thought."""
        calls = tuple(ToolCall(c.id, c.name, c.arguments) for c in self.tool_calls)
        said = "\n".join(part for part in (self.thought, self.content) if part)
        return Message("assistant", said, tool_calls=calls)


class ToolSaid(_Closed):
    """A tool's answer to one call."""

    role: Literal["tool"]
    content: RecordedContent
    tool_call_id: str
    name: str

    @property
    def message(self) -> Message:
        """Return it as a message."""
        return Message("tool", _shown(self.content), tool_call_id=self.tool_call_id, name=self.name)


RecordedMessage = Annotated[Said | AssistantSaid | ToolSaid, Field(discriminator="role")]


class Recording(_Closed):
    """One recorded conversation: it opens with a prompt, and assistants never follow each other."""

    messages: tuple[RecordedMessage, ...]
    tools: tuple[dict[str, Any], ...] = ()
    """JSON schemas of the functions it could call."""
    reward: float | None = Field(default=None, allow_inf_nan=False)
    """What it earned, where that is known."""

    @model_validator(mode="after")
    def _alternates(self) -> "Recording":
        roles = [message.role for message in self.messages]
        if "assistant" not in roles:
            raise ValueError("no assistant message, so there is nothing to learn; record one")
        if roles[0] == "assistant":
            raise ValueError("it begins with an assistant message; record what it answers to")
        for at, pair in enumerate(pairwise(roles)):
            if pair == ("assistant", "assistant"):
                raise ValueError(
                    f"messages {at} and {at + 1} are both by the assistant; join them, or record "
                    "what was answered in between"
                )
        return self


def read_recordings(path: Path, *, minimum_reward: float | None = None) -> tuple[Recording, ...]:
    """Return the recordings of a JSONL file, in order; empty lines are skipped.

    With `minimum_reward`, those that earned less, or nothing known, are left out. Raises
    `ConfigError` naming the file, the line and the key for anything that is not a recording.
    """
    if not path.is_file():
        raise ConfigError(f"{path} is no file; give a JSONL file of recorded conversations")
    found = tuple(_parsed(path))
    if minimum_reward is None:
        return found
    return tuple(r for r in found if r.reward is not None and r.reward >= minimum_reward)


def write_recordings(path: Path, recordings: Iterable[Recording]) -> None:
    """Write a JSONL file that `read_recordings` reads back as it was; whole or not at all."""
    lines = (r.model_dump_json(exclude_defaults=True) + "\n" for r in recordings)
    write_text(path, "".join(lines))


def recording_of(episode: GoldEpisode) -> Recording:
    """Return what a gold player did as a recording, without what followed its last action."""
    said: list[RecordedMessage] = [_recorded(message) for message in episode.messages]
    while said and said[-1].role != "assistant":
        said.pop()
    tools = tuple(dict(tool) for tool in episode.opening.tools or ())
    return Recording(messages=tuple(said), tools=tools, reward=episode.reward)


def _recorded(message: Message) -> RecordedMessage:
    match message.role:
        case "assistant":
            calls = tuple(
                RecordedCall(id=c.id, name=c.name, arguments=dict(c.arguments))
                for c in message.tool_calls
            )
            return AssistantSaid(role="assistant", content=message.text, tool_calls=calls)
        case "tool":
            return ToolSaid(
                role="tool",
                content=_kept(message.content),
                tool_call_id=message.tool_call_id or "",
                name=message.name or "",
            )
        case role:
            return Said(role=role, content=_kept(message.content))


def _shown(content: RecordedContent) -> Content:
    if isinstance(content, str):
        return content
    return tuple(p if isinstance(p, str) else Image(p.image, p.media_type) for p in content)


def _kept(content: Content) -> RecordedContent:
    if isinstance(content, str):
        return content
    # The field takes base64, as in the file.
    return tuple(
        part
        if isinstance(part, str)
        else RecordedImage(image=b64encode(part.data), media_type=part.media_type)
        for part in content
    )


def _parsed(path: Path) -> Iterator[Recording]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            yield Recording.model_validate_json(line)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise ConfigError(f"{path}, line {number}: {where}: {first['msg']}") from error
