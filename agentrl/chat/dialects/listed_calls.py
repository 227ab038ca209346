"""Dialects in which the calls of a turn are one list: of JSON objects, as Mistral's first and
Nemotron Nano 2 write it, or of calls in the notation of Python, as LFM2 does."""

import re
from collections.abc import Iterator

from agentrl.chat.call_json import NAME_MAX, read_arguments, read_call, skip_space
from agentrl.chat.dialects.hermes import begin_object, read_object, write_object
from agentrl.chat.dialects.named_calls import adapt_mistral, write_mistral_id
from agentrl.chat.dialects.syntax import (
    CallPart,
    CallSyntax,
    check_name,
    make_dialect,
    write_json,
)
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


_PYTHON_NAME = re.compile(rf"\s*([\w.-]{{0,{NAME_MAX}}})\(")
_PYTHON_TOKEN = re.compile(
    r"""\s*(?:'(?P<single>(?:[^'\\]|\\.)*)'|"(?P<double>(?:[^"\\]|\\.)*)\""""
    r"""|(?P<key>[^\s=,:'"\[\](){}]++)\s*=|(?P<word>[\w.+-]+)|(?P<mark>[\[\](){},:]))""",
    re.DOTALL,
)
_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}
_COMMON_ESCAPES = tuple('nrtbfu"\\')
_PYTHON_ESCAPES = {"'": "'", "a": "\a", "v": "\v", "\n": ""}
_ESCAPE = re.compile(
    r"\\(?:[xU]((?<=x)[0-9a-fA-F]{2}|(?<=U)00(?:0[0-9a-fA-F]|10)[0-9a-fA-F]{4})|([0-7]{1,3})|(.))"
    r"|[\"\x00-\x1f]",
    re.DOTALL,
)


def _read_python(text: str, at: int, number: int) -> CallPart:
    """Read `name(key=value, ...)`, whose values are literals of Python or JSON."""
    begin = _skip_bracket(text, at)
    head = _PYTHON_NAME.match(text, begin)
    if head is None or check_name(head[1]):
        return CallPart(check_name("") if head else "a call must be NAME(KEY=VALUE, ...)", None)
    tokens: list[str] = []
    try:
        for token, end in _list_json_tokens(text, head.end()):
            if token == ")":
                arguments = "{" + "".join(tokens) + "}"
                read = read_arguments(arguments, 0, name=head[1], call_id=f"call_{number}")
                if read.call and read.end != len(arguments):
                    return CallPart("a } ends the arguments before )", end)
                return CallPart(read.call or read.error, end)
            tokens.append(token)
    except ValueError as error:
        return CallPart(str(error), None)
    return CallPart(") is missing behind the arguments", None)


def _list_json_tokens(text: str, at: int) -> Iterator[tuple[str, int]]:
    """Yield the tokens from `at` on as JSON writes them, with their ends; `ValueError` for one that
    is none."""
    while skip_space(text, at) < len(text):
        match = _PYTHON_TOKEN.match(text, at)
        if match is None:
            raise ValueError(f"there is nothing of a call at character {at}")
        at, kind = match.end(), str(match.lastgroup)
        token = match[kind]
        if kind in ("single", "double"):
            token = '"' + _ESCAPE.sub(_write_escape, token) + '"'
        elif kind == "key":
            token = f"{write_json(token)}:"
        yield (_PYTHON_WORDS.get(token, token) if kind == "word" else token), at


def _write_escape(match: re.Match[str]) -> str:
    """Return an escape of Python, or a character that JSON has no other way for, as JSON has it."""
    code, octal, single = match.groups()
    if single in _COMMON_ESCAPES:
        return match[0]
    if code or octal:
        return write_json(chr(int(code, 16) if code else int(octal, 8)))[1:-1]
    return write_json(_PYTHON_ESCAPES.get(single, match[0]))[1:-1]


def _write_python(call: ToolCall, number: int) -> str:
    arguments = (f"{key}={_write_value(value)}" for key, value in call.arguments.items())
    return f"{call.name}({', '.join(arguments)})"


def _write_value(value: object) -> str:
    """Return a value as the templates write it."""
    if isinstance(value, str):
        body = value.replace("\\", "\\\\").replace("'", "\\'")
        return "'" + body.replace("\n", "\\n").replace("\r", "\\r") + "'"
    return str(value) if isinstance(value, bool | int | float | None) else write_json(value)


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
LFM2 = make_dialect(
    "lfm2",
    CallSyntax(
        open="<|tool_call_start|>",
        close="]<|tool_call_end|>",
        read=_read_python,
        write=_write_python,
        begin=lambda tool: f"{tool}(" if tool else "",
        wanted="Write <|tool_call_start|>[NAME(KEY='text', KEY=1)]<|tool_call_end|>",
        section=True,
        separator=", ",
        inside=("[", ""),
    ),
)
