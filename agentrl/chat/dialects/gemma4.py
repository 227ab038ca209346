"""Gemma 4: calls in a notation of its own, in which special tokens stand around texts."""

import re
from collections.abc import Sequence
from typing import Any

from agentrl.chat.call_json import CALL_LIMITS, NAME_MAX
from agentrl.chat.dialect import ToolCallDialect
from agentrl.chat.dialects.syntax import (
    CallPart,
    CallSyntax,
    check_arguments,
    check_name,
    parse_turn,
    write_json,
    write_turn,
)
from agentrl.chat.thinking import GEMMA4_MARKS, join_thinking, split_thinking
from agentrl.env import Action
from agentrl.message import ToolCall
from agentrl.runtime.json_limits import JsonLimitError, parse_json

QUOTE = '<|"|>'
OPEN, CLOSE = "<|tool_call>", "<tool_call|>"
THOUGHT, THOUGHT_END = "<|channel>thought\n", "<channel|>"
WANTED = f"Write {OPEN}call:NAME{{KEY:{QUOTE}TEXT{QUOTE},KEY:1}}{CLOSE}"

_SPACE = re.compile(r"\s*")
_SCALAR = re.compile(r"[^\s,\[\]{}<]{1,400}")
_DEPTH = CALL_LIMITS.depth


class NotationError(ValueError):
    """A text is no value of Gemma's notation; one clause that says what is wrong."""


def read_notation(text: str, at: int, depth: int = 0) -> tuple[Any, int]:
    """Return the value at a position and its end; raises `NotationError`, and nothing else."""
    at = _skip(text, at)
    if text.startswith(QUOTE, at):
        return _read_text(text, at)
    if text[at : at + 1] in ("{", "["):
        if depth >= _DEPTH:
            raise NotationError(f"the arguments are nested more than {_DEPTH} deep, the maximum")
        return _read_items(text, at, depth)
    found = _SCALAR.match(text, at)
    if found is None:
        raise NotationError(f"a value is missing at character {at}")
    try:
        value, end = parse_json(found[0], 0, CALL_LIMITS)
    except JsonLimitError as error:
        raise NotationError(str(error)) from None
    if end != len(found[0]):
        raise NotationError(f"{found[0][:80]!r} is no value; texts stand between {QUOTE}")
    return value, found.end()


def write_notation(value: Any) -> str:
    """Return a value as `read_notation` reads it."""
    match value:
        case str():
            return f"{QUOTE}{value}{QUOTE}"
        case dict():
            items = [f"{key}:{write_notation(value[key])}" for key in sorted(value)]
            return f"{{{','.join(items)}}}"
        case list() | tuple():
            return f"[{','.join(write_notation(item) for item in value)}]"
        case _:
            return write_json(value)


def parse(text: str, start: int) -> Action:
    """Read a turn; a thinking channel becomes a thinking block of its text."""
    shown, spoken = len(text), 0
    if text.startswith(THOUGHT):
        end = text.find(THOUGHT_END, len(THOUGHT))
        if end < 0:
            return Action(f"<think>\n{text[len(THOUGHT) :]}")
        thought = text[len(THOUGHT) : end].removesuffix("\n")
        said = text[end + len(THOUGHT_END) :]
        text = join_thinking(thought, said)
        spoken = len(text) - len(said)
    return parse_turn(_SYNTAX, text, min(max(spoken, start + len(text) - shown), len(text)))


def write(text: str, calls: Sequence[ToolCall]) -> str:
    """Return the turn that says a text and makes calls."""
    thought, said = split_thinking(text)
    channel = f"{THOUGHT}{thought}\n{THOUGHT_END}" if thought else ""
    return channel + write_turn(_SYNTAX, said, calls)


def _read(text: str, at: int, number: int) -> CallPart:
    if not text.startswith("call:", at := _skip(text, at)):
        return CallPart("call: is missing", None)
    brace = text.find("{", at, at + 2 * NAME_MAX)
    name = text[at + len("call:") : brace].strip()
    if brace < 0 or OPEN in name or CLOSE in name:
        return CallPart("{ is missing behind the name", None)
    if wrong := check_name(name):
        return CallPart(wrong, None)
    try:
        arguments, end = read_notation(text, brace)
    except NotationError as error:
        return CallPart(str(error), None)
    if wrong := check_arguments(name, arguments, size=text[at:end]):
        return CallPart(wrong, end)
    return CallPart(ToolCall(f"call_{number}", name, arguments), end)


def _write(call: ToolCall, number: int) -> str:
    return f"call:{call.name}{write_notation(dict(call.arguments))}"


def _read_text(text: str, at: int) -> tuple[str, int]:
    begin = at + len(QUOTE)
    end = text.find(QUOTE, begin)
    if end < 0:
        raise NotationError(f"{QUOTE} is missing behind a text")
    return text[begin:end], end + len(QUOTE)


def _read_items(text: str, at: int, depth: int) -> tuple[Any, int]:
    is_object = text[at] == "{"
    close = "}" if is_object else "]"
    keys: dict[str, None] = {}
    values: list[Any] = []
    at = _skip(text, at + 1)
    while not text.startswith(close, at):
        if values:
            if not text.startswith(",", at):
                raise NotationError(f"{close} is missing at character {at}")
            at += 1
        if is_object:
            key, at = _read_key(text, _skip(text, at))
            if key in keys:
                raise NotationError(f"{key[:80]!r} is written twice")
            keys[key] = None
        value, at = read_notation(text, at, depth + 1)
        values.append(value)
        if len(values) > CALL_LIMITS.values:
            raise NotationError(f"there are more than {CALL_LIMITS.values} values")
        at = _skip(text, at)
    return (dict(zip(keys, values, strict=True)) if is_object else values), at + 1


def _read_key(text: str, at: int) -> tuple[str, int]:
    if text.startswith(QUOTE, at):
        key, end = _read_text(text, at)
        end = _skip(text, end)
        if not text.startswith(":", end):
            raise NotationError(f": is missing behind {key[:80]!r}")
        return key, end + 1
    end = text.find(":", at, at + 2 * NAME_MAX)
    if end < 0:
        raise NotationError(f": is missing behind a name at character {at}")
    return text[at:end].strip(), end + 1


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return at if match is None else match.end()


def _adapt(message: dict[str, Any]) -> dict[str, Any]:
    """Give the template a turn's thought apart, as it wants it."""
    if message["role"] != "assistant" or not isinstance(message["content"], str):
        return message
    thought, said = split_thinking(message["content"])
    return message | {"content": said, "reasoning_content": thought} if thought else message


_SYNTAX = CallSyntax(
    open=OPEN,
    close=CLOSE,
    read=_read,
    write=_write,
    begin=lambda tool: f"call:{tool}{{" if tool else "call:",
    wanted=WANTED,
    thinking=GEMMA4_MARKS,
)
GEMMA4 = ToolCallDialect(
    name="gemma4",
    parse=parse,
    write=write,
    begin=lambda tool: OPEN + _SYNTAX.begin(tool),
    adapt=_adapt,
    begins_next=("<|tool_response>",),
)
