"""One tool call as a JSON object, read without ever raising."""

import json
from dataclasses import dataclass
from typing import Any, cast

from agentrl.message import ToolCall

_decoder = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class CallText:
    """What was found where a call was expected. Exactly one of `call` and `error` says something.

    `end` is where the JSON value ended; None when there was none to speak of.
    """

    end: int | None
    call: ToolCall | None = None
    error: str = ""


def read_call(text: str, start: int, *, arguments_key: str, call_id: str) -> CallText:
    """Read the object `{"name": ..., arguments_key: {...}}` at `start`, whitespace skipped."""
    while start < len(text) and text[start].isspace():
        start += 1
    try:
        value, end = _decoder.raw_decode(text, start)
    except RecursionError:
        return CallText(None, error="the JSON is nested too deeply")
    except json.JSONDecodeError as error:
        return CallText(None, error=f"broken JSON: {error.msg} at character {error.pos - start}")
    except ValueError:
        # A whole number of thousands of digits, which Python refuses to read.
        return CallText(None, error="a number in the JSON has too many digits")
    found = _call(value, arguments_key=arguments_key, call_id=call_id)
    return CallText(end, error=found) if isinstance(found, str) else CallText(end, call=found)


def write_call(call: ToolCall, *, arguments_key: str) -> str:
    """Return the call as chat templates write it: one line, no escapes beyond JSON's own."""
    written = {"name": call.name, arguments_key: dict(call.arguments)}
    return json.dumps(written, ensure_ascii=False)


def _call(value: Any, *, arguments_key: str, call_id: str) -> ToolCall | str:
    if not isinstance(value, dict):
        return f"a call is a JSON object, not {_kind(value)}"
    fields = cast("dict[str, Any]", value)
    name, arguments = fields.get("name"), fields.get(arguments_key)
    if not isinstance(name, str) or not name:
        return '"name" is missing or is no text'
    if arguments_key not in fields:
        return f'"{arguments_key}" is missing'
    if not isinstance(arguments, dict):
        return f'"{arguments_key}" must be an object, not {_kind(arguments)}'
    try:
        # NaN, infinity and half a surrogate pair pass the reader; nothing downstream takes them.
        json.dumps(fields, allow_nan=False, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return "a text in it is not valid Unicode"
    except ValueError:
        return "a number in it is not finite"
    except RecursionError:
        return "the JSON is nested too deeply"
    return ToolCall(call_id, name, cast("dict[str, Any]", arguments))


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a truth value"
        case str():
            return "a text"
        case list():
            return "a list"
        case dict():
            return "an object"
        case _:
            return "a number"
