"""Dialects in which a call's arguments stand one by one between tags, as text and not as JSON.

Qwen 3 Coder, Qwen 3.5 and Nemotron 3; GLM 4.5 to 5; MiniMax M2; DeepSeek V3.2 and V4.

A text is written as it is, and any other value as JSON or as Python writes it. So the text `5` may
be either. It is read as text, and `agentrl.runtime.argument_types` makes it the number where the
schema of the tool wants one. DeepSeek's tags tell texts from JSON.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from agentrl.chat.call_json import CALL_LIMITS, NAME_MAX, skip_space
from agentrl.chat.dialect import ToolCallDialect
from agentrl.chat.dialects.syntax import (
    CallPart,
    CallSyntax,
    check_arguments,
    check_name,
    make_dialect,
    write_json,
)
from agentrl.message import ToolCall
from agentrl.runtime.json_limits import JsonLimitError, parse_json

DSML = "\uff5cDSML\uff5c"
"""Before the names of DeepSeek's tags."""


def write_json_value(value: Any) -> str:
    """Return a value as text: a text as it is, everything else as JSON."""
    return value if isinstance(value, str) else write_json(value)


def write_python_value(value: Any) -> str:
    """Return a value as text: a list or an object as JSON, everything else as Python writes it."""
    return write_json(value) if isinstance(value, list | tuple | dict) else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueTags:
    """Marks around the name of a call and around its arguments."""

    name: tuple[str, str]
    """Before and behind the name of the tool. It ends before an argument or the end, too."""
    key: tuple[str, str]
    """Before and behind the name of an argument. With `typed`, TYPE in it is `true` for a text and
    `false` for JSON."""
    value: tuple[str, str]
    """Before and behind a value."""
    end: str = ""
    """Ends a call."""
    behind: str = ""
    """Mark behind the last argument, where `end` is empty."""
    key_break: str = ""
    """White space between an argument's name and value."""
    line: str = "\n"
    """White space behind the name of the tool, and behind each argument."""
    write_value: Callable[[Any], str] = write_json_value
    typed: bool = False

    def read(self, text: str, at: int, number: int) -> CallPart:
        """Read the call at a position."""
        begin = skip_space(text, at)
        if not text.startswith(self.name[0], begin):
            return CallPart(f"{self.name[0]} is missing", None)
        name_at = begin + len(self.name[0])
        name_end = self._find_name_end(text, name_at)
        if name_end < 0:
            return CallPart("the name of the tool has no end", None)
        name = text[name_at:name_end].strip()
        if wrong := check_name(name):
            return CallPart(wrong, None)
        at = name_end + len(self.name[1]) * text.startswith(self.name[1], name_end)
        arguments: dict[str, Any] = {}
        while text.startswith(self.key[0], at := skip_space(text, at)):
            read = self._read_argument(text, at + len(self.key[0]))
            if isinstance(read, str):
                return CallPart(read, None)
            key, value, at = read
            if key in arguments:
                return CallPart(f"the argument {key[:80]!r} is written twice", None)
            arguments[key] = value
            if len(arguments) > CALL_LIMITS.values:
                return CallPart(f"the call has more than {CALL_LIMITS.values} arguments", None)
        if not text.startswith(self.end, at):
            return CallPart(f"{self.end} is missing behind the arguments", None)
        end = at + len(self.end)
        if wrong := check_arguments(name, arguments, size=text[begin:end]):
            return CallPart(wrong, end)
        return CallPart(ToolCall(f"call_{number}", name, arguments), end)

    def write(self, call: ToolCall, number: int) -> str:
        """Return a call as `read` reads it."""
        written = [f"{self.name[0]}{call.name}{self.name[1]}{self.line}"]
        for key, value in call.arguments.items():
            kind = "true" if isinstance(value, str) else "false"
            written += [
                *(self.key[0], key, self.key[1].replace("TYPE", kind), self.key_break),
                *(self.value[0], self.write_value(value), self.value[1], self.line),
            ]
        return "".join(written) + self.end

    def begin(self, tool: str) -> str:
        """Return the beginning of a call of this tool, or with no name that of any."""
        return self.name[0] + (f"{tool}{self.name[1] or self.line}" if tool else "")

    def _find_name_end(self, text: str, at: int) -> int:
        window = at + 2 * NAME_MAX
        marks = [mark for mark in (self.name[1], self.key[0], self.end, self.behind) if mark]
        if not self.name[1]:
            marks.append("\n")
        ends = [found for mark in marks if (found := text.find(mark, at, window)) >= 0]
        return min(ends, default=-1)

    def _read_argument(self, text: str, at: int) -> tuple[str, Any, int] | str:
        """Return an argument's name and value and where it ends, or what is wrong."""
        window = at + 2 * NAME_MAX
        kinds = ("true", "false") if self.typed else ("",)
        marks = {self.key[1].replace("TYPE", kind): kind for kind in kinds}
        matches = [
            (key_end, mark) for mark in marks if (key_end := text.find(mark, at, window)) >= 0
        ]
        if not matches:
            return f"{self.key[1]} is missing behind the name of an argument"
        key_end, mark = min(matches)
        key = text[at:key_end].strip()
        if not key or len(key) > NAME_MAX:
            return f"the name of an argument must have 1 to {NAME_MAX} characters"
        begin = key_end + len(mark)
        if self.key_break or self.value[0].strip():
            begin = skip_space(text, begin)
        if not text.startswith(self.value[0].strip(), begin):
            return f"{self.value[0].strip()} is missing behind the argument {key[:80]!r}"
        begin += len(self.value[0].strip())
        close = self._find_value_end(text, begin)
        if close < 0:
            return f"{self.value[1].strip()} is missing behind the argument {key[:80]!r}"
        raw = text[begin:close]
        if self.value[1][0] == "\n":
            raw = raw.removeprefix("\n").removesuffix("\n")
        end = close + len(self.value[1].strip())
        if marks[mark] != "false":
            return key, raw, end
        raw = raw.strip(" \t\n\r")
        try:
            value, read_to = parse_json(raw, 0, CALL_LIMITS)
        except JsonLimitError as error:
            return f"the argument {key[:80]!r}: {error}"
        return (key, value, end) if read_to == len(raw) else f"{key[:80]!r} is more than one value"

    def _find_value_end(self, text: str, at: int) -> int:
        """Return the end of a value: its tag, behind which another argument or the end comes.

        A value may hold the tag itself, as the text of a program that writes calls does.
        """
        tag = self.value[1].strip()
        while (at := text.find(tag, at)) >= 0:
            behind = skip_space(text, at + len(tag))
            if text.startswith((self.key[0], self.end or self.behind), behind):
                return at
            at += len(tag)
        return -1


_QWEN = ValueTags(
    name=("<function=", ">"),
    key=("<parameter=", ">"),
    value=("\n", "\n</parameter>"),
    end="</function>",
    write_value=write_python_value,
)
QWEN3_CODER = make_dialect(
    "qwen3_coder",
    CallSyntax(
        open="<tool_call>",
        close="</tool_call>",
        read=_QWEN.read,
        write=_QWEN.write,
        begin=_QWEN.begin,
        wanted="Write <tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n"
        "</function>\n</tool_call>",
        gap="\n\n",
        between="\n",
        inside=("\n", "\n"),
    ),
    text_arguments=True,
)
_GLM_4_5 = ValueTags(
    name=("", ""),
    key=("<arg_key>", "</arg_key>"),
    value=("<arg_value>", "</arg_value>"),
    behind="</tool_call>",
    key_break="\n",
)
_GLM_4_5_SYNTAX = CallSyntax(
    open="<tool_call>",
    close="</tool_call>",
    read=_GLM_4_5.read,
    write=_GLM_4_5.write,
    begin=_GLM_4_5.begin,
    wanted="Write <tool_call>NAME\n<arg_key>KEY</arg_key>\n<arg_value>VALUE</arg_value>\n"
    "</tool_call>",
    gap="\n",
    between="\n",
)
GLM_4_5 = make_dialect(
    "glm_4_5",
    _GLM_4_5_SYNTAX,
    text_arguments=True,
    begins_next=("<|user|>", "<|observation|>", "<|system|>"),
)
_GLM_4_7 = replace(_GLM_4_5, key_break="", line="")
GLM_4_7 = make_dialect(
    "glm_4_7",
    replace(
        _GLM_4_5_SYNTAX,
        read=_GLM_4_7.read,
        write=_GLM_4_7.write,
        begin=_GLM_4_7.begin,
        gap="",
        between="",
    ),
    text_arguments=True,
    begins_next=GLM_4_5.begins_next,
)
_MINIMAX = ValueTags(
    name=('<invoke name="', '">'),
    key=('<parameter name="', '">'),
    value=("", "</parameter>"),
    end="</invoke>",
)
MINIMAX_M2 = make_dialect(
    "minimax_m2",
    CallSyntax(
        open="<minimax:tool_call>",
        close="</minimax:tool_call>",
        read=_MINIMAX.read,
        write=_MINIMAX.write,
        begin=_MINIMAX.begin,
        wanted='Write <minimax:tool_call>\n<invoke name="NAME">\n<parameter name="KEY">VALUE'
        "</parameter>\n</invoke>\n</minimax:tool_call>",
        section=True,
        separator="\n",
        gap="\n",
        inside=("\n", "\n"),
    ),
    text_arguments=True,
)
_DSML = ValueTags(
    name=(f'<{DSML}invoke name="', '">'),
    key=(f'<{DSML}parameter name="', '" string="TYPE">'),
    value=("", f"</{DSML}parameter>"),
    end=f"</{DSML}invoke>",
    typed=True,
)


def _make_dsml(name: str, section: str) -> ToolCallDialect:
    return make_dialect(
        name,
        CallSyntax(
            open=f"<{DSML}{section}>",
            close=f"</{DSML}{section}>",
            read=_DSML.read,
            write=_DSML.write,
            begin=_DSML.begin,
            wanted=f'Write <{DSML}{section}>\n<{DSML}invoke name="NAME">\n<{DSML}parameter '
            f'name="KEY" string="true">VALUE</{DSML}parameter>\n</{DSML}invoke>\n'
            f"</{DSML}{section}>",
            section=True,
            separator="\n",
            gap="\n\n",
            inside=("\n", "\n"),
        ),
    )


DEEPSEEK_V32 = _make_dsml("deepseek_v32", "function_calls")
DEEPSEEK_V4 = _make_dsml("deepseek_v4", "tool_calls")
