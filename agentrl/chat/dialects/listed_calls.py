"""Dialects in which the calls of a turn are one JSON list: Mistral's first, and Nemotron Nano 2."""

from agentrl.chat.call_json import read_call, skip_space
from agentrl.chat.dialects.hermes import begin_object, read_object, write_object
from agentrl.chat.dialects.named_calls import adapt_mistral, write_mistral_id
from agentrl.chat.dialects.syntax import CallPart, CallSyntax, make_dialect, write_json
from agentrl.chat.thinking import MISTRAL_MARKS
from agentrl.message import ToolCall


def _read_in_list(text: str, at: int, number: int) -> CallPart:
    return read_object(text, _skip_bracket(text, at), number)


def _skip_bracket(text: str, at: int) -> int:
    at = skip_space(text, at)
    return at + text.startswith("[", at)


def _read_mistral_v3(text: str, at: int, number: int) -> CallPart:
    at = _skip_bracket(text, at)
    read = read_call(text, at, arguments_key="arguments", call_id=f"call_{number}")
    return CallPart(read.call or read.error, read.end)


def _write_mistral_v3(call: ToolCall, number: int) -> str:
    return write_json(
        {"name": call.name, "arguments": dict(call.arguments), "id": write_mistral_id(call.id)}
    )


MISTRAL_V3 = make_dialect(
    "mistral_v3",
    CallSyntax(
        open="[TOOL_CALLS]",
        close="]",
        read=_read_mistral_v3,
        write=_write_mistral_v3,
        begin=begin_object,
        wanted='Write [TOOL_CALLS][{"name": "...", "arguments": {...}}]',
        thinking=MISTRAL_MARKS,
        section=True,
        separator=", ",
        inside=("[", ""),
    ),
    adapt=adapt_mistral,
)
NEMOTRON = make_dialect(
    "nemotron",
    CallSyntax(
        open="<TOOLCALL>",
        close="]</TOOLCALL>",
        read=_read_in_list,
        write=write_object,
        begin=begin_object,
        wanted='Write <TOOLCALL>[{"name": "...", "arguments": {...}}]</TOOLCALL>',
        section=True,
        separator=", ",
        inside=("[", ""),
    ),
)
