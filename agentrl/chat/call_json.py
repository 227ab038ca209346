"""One tool call as a JSON object, read without ever raising."""

import json
import re
from dataclasses import dataclass
from typing import Any, cast

from agentrl.message import ToolCall
from agentrl.runtime.json_limits import (
    JsonLimitError,
    JsonLimits,
    check_json,
    check_text_bytes,
    parse_json,
)

CALL_LIMITS = JsonLimits(text_bytes=2**18, values=10_000, nul=False, repeated_keys=False)
"""Limits of one call. Tools put its texts into paths and commands, which cannot hold NUL."""
CALLS_MAX = 64
"""Most calls in one turn, those that cannot be read among them."""
NAME_MAX = 256
"""Characters of a tool's name."""
TOO_MANY = f"Malformed tool call: a turn may make at most {CALLS_MAX} calls; the rest was ignored."

_SPACE = re.compile(r"\s*")


@dataclass(frozen=True, slots=True)
class ToolCallText:
    """Result of reading a call. Exactly one of `call` and `error` says something.

    `end` is where the JSON value ended; None when there was none to speak of.
    """

    end: int | None
    call: ToolCall | None = None
    error: str = ""


def read_call(text: str, start: int, *, arguments_key: str, call_id: str) -> ToolCallText:
    """Read the object `{"name": ..., arguments_key: {...}}` at `start`, whitespace skipped."""
    start = skip_space(text, start)
    end = None
    try:
        value, end = parse_json(text, start, CALL_LIMITS)
        check_text_bytes(text[start:end], CALL_LIMITS)
        check_json(value, CALL_LIMITS)
    except JsonLimitError as error:
        return ToolCallText(end, error=str(error))
    return ToolCallText(end, *call_of(value, arguments_key=arguments_key, call_id=call_id))


def read_arguments(text: str, start: int, *, name: str, call_id: str) -> ToolCallText:
    """Read the object of a call's arguments at `start`, behind its name, whitespace skipped."""
    start = skip_space(text, start)
    end = None
    try:
        value, end = parse_json(text, start, CALL_LIMITS)
        check_text_bytes(text[start:end], CALL_LIMITS)
        check_json(value, CALL_LIMITS)
    except JsonLimitError as error:
        return ToolCallText(end, error=str(error))
    value = {"name": name, "arguments": value}
    return ToolCallText(end, *call_of(value, arguments_key="arguments", call_id=call_id))


def write_call(call: ToolCall, *, arguments_key: str) -> str:
    """Return the call as chat templates write it: one line, no escapes beyond JSON's own."""
    written = {"name": call.name, arguments_key: dict(call.arguments)}
    return json.dumps(written, ensure_ascii=False)


def begin_call(tool: str, *, arguments_key: str) -> str:
    """Return the beginning of `write_call`: up to the arguments, or without a name up to the name.

    It ends where a token of most tokenizers does: a name is a token after the quote, and the space
    before the arguments belongs to theirs.
    """
    if not tool:
        return '{"name": "'
    return f'{{"name": {json.dumps(tool, ensure_ascii=False)}, "{arguments_key}":'


def skip_space(text: str, at: int) -> int:
    """Return the index of the first character from `at` on that is no whitespace."""
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()


def call_of(value: Any, *, arguments_key: str, call_id: str) -> tuple[ToolCall | None, str]:
    """Return the call that a value within the limits is, or else what is wrong with it."""
    if not isinstance(value, dict):
        return None, f"a call must be a JSON object, not {_kind(value)}"
    fields = cast("dict[str, Any]", value)
    name, arguments = fields.get("name"), fields.get(arguments_key)
    if not isinstance(name, str) or not name:
        return None, '"name" is missing or not text'
    if len(name) > NAME_MAX:
        return None, f'"name" has {len(name)} characters, but the limit is {NAME_MAX}'
    if arguments_key not in fields:
        return None, f'"{arguments_key}" is missing'
    if not isinstance(arguments, dict):
        return None, f'"{arguments_key}" must be an object, not {_kind(arguments)}'
    return ToolCall(call_id, name, cast("dict[str, Any]", arguments)), ""


def _kind(value: Any) -> str:
    kinds = {bool: "a truth value", str: "a text", list: "a list", dict: "an object"}
    return "null" if value is None else kinds.get(type(value), "a number")
