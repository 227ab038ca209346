"""Dialects in which a call is the name of its tool, a mark, and its arguments as JSON.

Kimi K2, DeepSeek V3 and V3.1, and Mistral since its tokenizers of version 11.
"""

import re
from dataclasses import replace
from typing import Any

from agentrl.chat.dialects.syntax import (
    CallPart,
    CallSyntax,
    make_dialect,
    read_named,
    write_json,
)
from agentrl.chat.thinking import MISTRAL_MARKS
from agentrl.message import ToolCall

_KIMI_ID = re.compile(r"(?:functions\.)?(.+?):(\d{1,9})\Z", re.DOTALL | re.ASCII)
_NUMBER = re.compile(r"\d{1,9}\Z", re.ASCII)
_MISTRAL_ID = re.compile(r"[A-Za-z0-9]{9}\Z")

_KIMI_SECTION = ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")
_KIMI_CALL = ("<|tool_call_begin|>", "<|tool_call_end|>")


def _read_kimi(text: str, at: int, number: int) -> CallPart:
    part = read_named(
        text,
        at,
        before=_KIMI_CALL[0],
        mark="<|tool_call_argument_begin|>",
        after=_KIMI_CALL[1],
        section=_KIMI_SECTION,
        inner=_KIMI_CALL,
    )
    if isinstance(part.result, str):
        return part
    named = _KIMI_ID.match(part.result.name)
    if named is None:
        return CallPart('the name of the tool must be "functions.NAME:NUMBER"', part.end)
    return CallPart(replace(part.result, name=named[1]), part.end)


def _write_kimi(call: ToolCall, number: int) -> str:
    call_id = write_kimi_id(call.name, call.id)
    arguments = write_json(dict(call.arguments))
    return f"<|tool_call_begin|>{call_id}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"


def write_kimi_id(name: str, call_id: str) -> str:
    """Return the id of a call as Kimi numbers it: `functions.NAME:NUMBER`.

    An id of that form is kept unless it names another tool; an answer may come without a name.
    """
    numbered = _KIMI_ID.match(call_id)
    if numbered and name in ("", numbered[1]):
        return call_id
    return f"functions.{name}:{_read_number(call_id)}"


def _adapt_kimi(message: dict[str, Any]) -> dict[str, Any]:
    calls = [
        call | {"id": write_kimi_id(call["function"]["name"], call["id"])}
        for call in message.get("tool_calls", ())
    ]
    adapted = message | {"tool_calls": calls} if calls else message
    if message["role"] == "tool":
        call_id = write_kimi_id(message.get("name", ""), message.get("tool_call_id", ""))
        return adapted | {"tool_call_id": call_id}
    return adapted


KIMI_K2 = make_dialect(
    "kimi_k2",
    CallSyntax(
        open=_KIMI_SECTION[0],
        close=_KIMI_SECTION[1],
        read=_read_kimi,
        write=_write_kimi,
        begin=lambda tool: "<|tool_call_begin|>functions." + (f"{tool}:" if tool else ""),
        wanted="Write <|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{...}"
        "<|tool_call_end|> between <|tool_calls_section_begin|> and <|tool_calls_section_end|>",
        section=True,
        write_id=write_kimi_id,
    ),
    adapt=_adapt_kimi,
)


CALLS_BEGIN, CALLS_END, CALL_BEGIN, CALL_END, SEP = (
    f"<\uff5ctool\u2581{name}\uff5c>"
    for name in (
        "calls\u2581begin",
        "calls\u2581end",
        "call\u2581begin",
        "call\u2581end",
        "sep",
    )
)


def _read_deepseek_v3(text: str, at: int, number: int) -> CallPart:
    return read_named(
        text,
        at,
        before=f"{CALL_BEGIN}function{SEP}",
        mark="\n```json\n",
        after=f"\n```{CALL_END}",
        section=(CALLS_BEGIN, CALLS_END),
        inner=(CALL_BEGIN, CALL_END, SEP),
        call_id=f"call_{number}",
    )


def _write_deepseek_v3(call: ToolCall, number: int) -> str:
    arguments = write_json(dict(call.arguments))
    return f"{CALL_BEGIN}function{SEP}{call.name}\n```json\n{arguments}\n```{CALL_END}"


_DEEPSEEK_V3 = CallSyntax(
    open=CALLS_BEGIN,
    close=CALLS_END,
    read=_read_deepseek_v3,
    write=_write_deepseek_v3,
    begin=lambda tool: f"{CALL_BEGIN}function{SEP}" + (f"{tool}\n```json\n" if tool else ""),
    wanted=f"Write {CALL_BEGIN}function{SEP}NAME, a line ```json, the arguments, and "
    f"```{CALL_END}, all between {CALLS_BEGIN} and {CALLS_END}",
    section=True,
    separator="\n",
)
DEEPSEEK_V3 = make_dialect("deepseek_v3", _DEEPSEEK_V3)


def _read_deepseek_v31(text: str, at: int, number: int) -> CallPart:
    return read_named(
        text,
        at,
        before=CALL_BEGIN,
        mark=SEP,
        after=CALL_END,
        section=(CALLS_BEGIN, CALLS_END),
        inner=(CALL_BEGIN, CALL_END),
        call_id=f"call_{number}",
    )


def _write_deepseek_v31(call: ToolCall, number: int) -> str:
    return f"{CALL_BEGIN}{call.name}{SEP}{write_json(dict(call.arguments))}{CALL_END}"


def _begin_deepseek_v31(tool: str) -> str:
    return CALL_BEGIN + (f"{tool}{SEP}" if tool else "")


DEEPSEEK_V31 = make_dialect(
    "deepseek_v31",
    replace(
        _DEEPSEEK_V3,
        read=_read_deepseek_v31,
        write=_write_deepseek_v31,
        begin=_begin_deepseek_v31,
        wanted=f"Write {CALL_BEGIN}NAME{SEP}{{...}}{CALL_END} between {CALLS_BEGIN} and "
        f"{CALLS_END}",
        separator="",
    ),
)


def write_mistral_id(call_id: str) -> str:
    """Return an id of nine letters and digits, the only ones that Mistral's templates take."""
    if _MISTRAL_ID.match(call_id):
        return call_id
    return f"call{_read_number(call_id) % 100_000:05d}"


def _read_number(call_id: str) -> int:
    """Return the number that an id ends with, or 0."""
    number = _NUMBER.search(call_id)
    return int(number[0]) if number else 0


def adapt_mistral(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message with ids of calls as Mistral's templates take them."""
    adapted = dict(message)
    if "tool_calls" in message:
        adapted["tool_calls"] = [
            call | {"id": write_mistral_id(call["id"])} for call in message["tool_calls"]
        ]
    if message["role"] == "tool":
        adapted["tool_call_id"] = write_mistral_id(message.get("tool_call_id", ""))
    return adapted


def _read_mistral(text: str, at: int, number: int) -> CallPart:
    return read_named(text, at, mark="[ARGS]", section=("[TOOL_CALLS]",), call_id=f"call_{number}")


def _write_mistral(call: ToolCall, number: int) -> str:
    return f"{call.name}[ARGS]{write_json(dict(call.arguments))}"


MISTRAL = make_dialect(
    "mistral",
    CallSyntax(
        open="[TOOL_CALLS]",
        read=_read_mistral,
        write=_write_mistral,
        begin=lambda tool: f"{tool}[ARGS]" if tool else "",
        wanted="Write [TOOL_CALLS]NAME[ARGS]{...}",
        thinking=MISTRAL_MARKS,
    ),
    adapt=adapt_mistral,
)


def _read_mistral_v11(text: str, at: int, number: int) -> CallPart:
    part = read_named(text, at, mark="[ARGS]", section=("[TOOL_CALLS]",), call_id=f"call_{number}")
    if isinstance(part.result, str):
        return part
    name, marked, call_id = part.result.name.partition("[CALL_ID]")
    if not marked or not name or not _MISTRAL_ID.match(call_id):
        return CallPart("[CALL_ID] and nine letters and digits are missing", part.end)
    return CallPart(replace(part.result, name=name, id=call_id), part.end)


def _write_mistral_v11(call: ToolCall, number: int) -> str:
    call_id = write_mistral_id(call.id)
    return f"{call.name}[CALL_ID]{call_id}[ARGS]{write_json(dict(call.arguments))}"


MISTRAL_V11 = make_dialect(
    "mistral_v11",
    CallSyntax(
        open="[TOOL_CALLS]",
        read=_read_mistral_v11,
        write=_write_mistral_v11,
        begin=lambda tool: f"{tool}[CALL_ID]" if tool else "",
        wanted="Write [TOOL_CALLS]NAME[CALL_ID]abcdefghi[ARGS]{...}",
        thinking=MISTRAL_MARKS,
        write_id=lambda name, call_id: write_mistral_id(call_id),
    ),
    adapt=adapt_mistral,
)
