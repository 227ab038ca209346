"""Harmony, the format of gpt-oss: a turn is one or several messages, each in a channel.

The thought is the text of the channel `analysis`, a call a message to `functions.NAME`. A turn is
read as a thinking block, what it says, and its calls.
"""

import re
from collections.abc import Sequence
from typing import Any

from agentrl.chat.call_json import CALLS_MAX, TOO_MANY, read_arguments, skip_space
from agentrl.chat.dialect import ToolCallDialect
from agentrl.chat.dialects.syntax import check_name, write_json
from agentrl.chat.thinking import join_thinking, split_thinking
from agentrl.env import Action
from agentrl.message import ToolCall

CHANNEL, MESSAGE = "<|channel|>", "<|message|>"
NEXT = "<|start|>assistant"
WANTED = f"Write {CHANNEL}commentary to=functions.NAME <|constrain|>json{MESSAGE}{{...}}"

_ENDS = re.compile(r"<\|(?:end|call|return)\|>")
_RECIPIENT = re.compile(r"to=([^\s<]{1,600})")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")


def parse(text: str, start: int) -> Action:
    """Read a turn: messages of any channels, and calls in any number."""
    if MESSAGE not in text and CHANNEL not in text and not text.startswith(" to=functions."):
        return Action(text)
    thoughts: list[str] = []
    said: list[str] = []
    calls: list[ToolCall] = []
    malformed: list[str] = []
    at = 0
    for part in text.split(NEXT):
        begins_at, at = at, at + len(part) + len(NEXT)
        header, marked, body = part.partition(MESSAGE)
        end = _ENDS.search(body)
        content = body if end is None else body[: end.start()]
        channel, recipient = _CHANNEL.search(header), _RECIPIENT.search(header)
        if recipient is not None and begins_at + len(header) >= start:
            if len(calls) + len(malformed) >= CALLS_MAX:
                malformed.append(TOO_MANY)
                break
            read = _read_call(recipient[1], content, marked=bool(marked), number=len(calls))
            if isinstance(read, ToolCall):
                calls.append(read)
            else:
                malformed.append(f"Malformed tool call: {read}. {WANTED}")
        elif channel is not None and channel[1] == "analysis":
            thoughts.append(content)
        else:
            said.append(content if marked else part)
    thought = "\n".join(thoughts)
    spoken = "\n".join(part for part in said if part)
    return Action(join_thinking(thought, spoken), tuple(calls), tuple(malformed))


def write(text: str, calls: Sequence[ToolCall]) -> str:
    """Return the turn: the thought, what it says, and its calls."""
    thought, said = split_thinking(text)
    parts = [f"{CHANNEL}analysis{MESSAGE}{thought}<|end|>"] if thought else []
    if said or not calls:
        channel = "commentary" if calls else "final"
        end = "<|end|>" if calls else ""
        parts.append(f"{CHANNEL}{channel}{MESSAGE}{said}{end}")
    parts += [
        f" to=functions.{call.name}{CHANNEL}commentary json{MESSAGE}"
        f"{write_json(dict(call.arguments))}" + ("" if call is calls[-1] else "<|call|>")
        for call in calls
    ]
    return NEXT.join(parts)


def begin(tool: str) -> str:
    """Return the beginning of a turn that calls this tool, or with no name any."""
    return f" to=functions.{tool}" + (f"{CHANNEL}commentary json{MESSAGE}" if tool else "")


def _read_call(recipient: str, content: str, *, marked: bool, number: int) -> ToolCall | str:
    name = recipient.removeprefix("functions.")
    if name == recipient:
        return f"a call must be to functions.NAME, not to {recipient[:80]!r}"
    if wrong := check_name(name):
        return wrong
    if not marked:
        return f"{MESSAGE} is missing"
    read = read_arguments(content, 0, name=name, call_id=f"call_{number}")
    if read.call is None or read.end is None:
        return read.error
    if skip_space(content, read.end) < len(content):
        return "there is text behind the arguments"
    return read.call


def _adapt(message: dict[str, Any]) -> dict[str, Any]:
    """Give the template a turn's thought apart; beside a call it takes no other words."""
    if message["role"] != "assistant" or not isinstance(message["content"], str):
        return message
    thought, said = split_thinking(message["content"])
    if message.get("tool_calls"):
        thought, said = "\n".join(part for part in (thought, said) if part), ""
    return message | ({"content": said, "thinking": thought} if thought else {})


HARMONY = ToolCallDialect(
    name="harmony",
    parse=parse,
    write=write,
    begin=begin,
    adapt=_adapt,
    also_stops=("<|call|>", "<|return|>"),
)
