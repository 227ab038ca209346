"""Llama 3: a turn is a JSON object with `name` and `parameters`, or text and then the tag."""

import re
from collections.abc import Sequence
from pathlib import Path

from agentrl.chat.call_json import (
    CALLS_MAX,
    TOO_MANY,
    begin_call,
    read_call,
    skip_space,
    write_call,
)
from agentrl.chat.dialect import ToolCallDialect
from agentrl.chat.thinking import CLOSE as THOUGHT
from agentrl.chat.thinking import OPEN as THINK
from agentrl.chat.thinking import find_spoken
from agentrl.env import Action
from agentrl.message import ToolCall
from agentrl.runtime.json_limits import JsonLimitError, parse_json

TAG = "<|python_tag|>"
WANTED = 'Write {"name": "...", "parameters": {...}} and nothing after it'
_ATTEMPT = re.compile(r'\{\s*"(name|parameters|type)"')
"""Beginning of a turn without the tag that is a call, and not an answer that is JSON."""
_ARGUMENTS = {"parameters", "arguments"}


def parse(text: str, start: int) -> Action:
    """Read a turn: text or calls or text, the tag and calls; `;` stands between calls."""
    begin = _skip_thinking(text, start)
    if _ATTEMPT.match(text, begin) and not _is_answer(text, begin):
        return _read(text, said=text[:begin].rstrip(), at=begin)
    if (tag := find_spoken(text, TAG, start)) >= 0:
        return _read(text, said=text[:tag], at=tag + len(TAG))
    return Action(text)


def write(text: str, calls: Sequence[ToolCall]) -> str:
    """Return the turn; the tag stands between text and calls."""
    written = "; ".join(write_call(call, arguments_key="parameters") for call in calls)
    return f"{text}{TAG}{written}" if text and calls else text + written


def begin(tool: str) -> str:
    """Return the beginning of a turn that calls this tool, or with no name any."""
    return begin_call(tool, arguments_key="parameters")


def _read(text: str, *, said: str, at: int) -> Action:
    """Read calls up to the end of the text, or up to the first thing that is none."""
    calls: list[ToolCall] = []
    malformed: list[str] = []
    while True:
        read = read_call(text, at, arguments_key="parameters", call_id=f"call_{len(calls)}")
        if read.call is None:
            malformed.append(f"Malformed tool call: {read.error}. {WANTED}")
        else:
            calls.append(read.call)
        if read.end is None or (at := skip_space(text, read.end)) == len(text):
            break
        if len(calls) + len(malformed) == CALLS_MAX or text[at] not in ";{":
            wrong = f"Malformed tool call: there is text after it. {WANTED}"
            malformed.append(TOO_MANY if text[at] in ";{" else wrong)
            break
        at += text[at] == ";"
    return Action(said, tuple(calls), tuple(malformed))


def _is_answer(text: str, at: int) -> bool:
    """Return whether a JSON object is no call: it has other fields than those of one."""
    try:
        value, _ = parse_json(text, at)
    except JsonLimitError:
        return False
    return not value.keys() & _ARGUMENTS and not value.keys() <= {"type", "name"}


def _skip_thinking(text: str, at: int) -> int:
    """Return the index of the first word after leading white space and thinking blocks."""
    while True:
        at = skip_space(text, at)
        closed = text.find(THOUGHT, at) if text.startswith(THINK, at) else -1
        if closed < 0:
            return at
        at = closed + len(THOUGHT)


LLAMA3 = ToolCallDialect(
    name="llama3",
    parse=parse,
    write=write,
    begin=begin,
    folder=Path(__file__).parent,
    special_tokens=(
        "<|finetune_right_pad_id|>",
        "<|begin_of_text|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eot_id|>",
        TAG,
    ),
    end_of_turn="<|eot_id|>",
    pad="<|finetune_right_pad_id|>",
    begin_of_text="<|begin_of_text|>",
    also_stops=("<|eom_id|>",),
)
