"""Hermes and Qwen: every call is a JSON object between `<tool_call>` and `</tool_call>`."""

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
from agentrl.chat.thinking import find_spoken
from agentrl.env import Action
from agentrl.message import ToolCall

OPEN = "<tool_call>"
CLOSE = "</tool_call>"
WANTED = f'Write {OPEN}\n{{"name": "...", "arguments": {{...}}}}\n{CLOSE}'


def parse(text: str, start: int) -> Action:
    """Read a turn: any number of calls, with text before, between and after them."""
    texts: list[str] = []
    calls: list[ToolCall] = []
    malformed: list[str] = []
    read_to = 0
    while (begin := find_spoken(text, OPEN, max(start, read_to))) >= 0:
        texts.append(text[read_to:begin].removesuffix("\n"))
        if len(calls) + len(malformed) == CALLS_MAX:
            malformed.append(TOO_MANY)
            break
        result, read_to = _read(text, begin, number=len(calls))
        if isinstance(result, ToolCall):
            calls.append(result)
        else:
            malformed.append(f"Malformed tool call: {result}. {WANTED}")
    else:
        rest = text[read_to:]
        texts.append(rest.removeprefix("\n") if read_to else rest)
    return Action("\n".join(part for part in texts if part), tuple(calls), tuple(malformed))


def write(text: str, calls: Sequence[ToolCall]) -> str:
    """Return the turn, one line break between text and calls and between calls."""
    blocks = [f"{OPEN}\n{write_call(c, arguments_key='arguments')}\n{CLOSE}" for c in calls]
    return "\n".join([text, *blocks] if text else blocks)


def begin(tool: str) -> str:
    """Return the beginning of a turn that calls this tool, or with no name any."""
    return f"{OPEN}\n{begin_call(tool, arguments_key='arguments')}"


def _read(text: str, begin: int, *, number: int) -> tuple[ToolCall | str, int]:
    """Return the call that opens at `begin`, or what is wrong with it, and where it ends."""
    body = begin + len(OPEN)
    read = read_call(text, body, arguments_key="arguments", call_id=f"call_{number}")
    if read.end is not None:
        # The JSON decides where the call ends: a text in it may hold the closing tag.
        closed = skip_space(text, read.end)
        if text.startswith(CLOSE, closed):
            return read.call or read.error, closed + len(CLOSE)
    close, reopened = text.find(CLOSE, body), text.find(OPEN, body)
    if close < 0 or 0 <= reopened < close:
        end = len(text) if reopened < 0 else reopened
        return read.error or f"{CLOSE} is missing", end
    return read.error or f"there is more than one JSON object before {CLOSE}", close + len(CLOSE)


HERMES = ToolCallDialect(
    name="hermes",
    parse=parse,
    write=write,
    begin=begin,
    folder=Path(__file__).parent,
    special_tokens=("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    image_tokens=("<|vision_start|>", "<|image_pad|>", "<|vision_end|>"),
    end_of_turn="<|im_end|>",
    pad="<|endoftext|>",
)
