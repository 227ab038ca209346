"""Hermes and Qwen: every call is a JSON object between `<tool_call>` and `</tool_call>`."""

from pathlib import Path

from agentrl.chat.call_json import begin_call, read_call, write_call
from agentrl.chat.dialects.syntax import CallPart, CallSyntax, make_dialect
from agentrl.message import ToolCall

OPEN = "<tool_call>"
CLOSE = "</tool_call>"


def read_object(text: str, at: int, number: int) -> CallPart:
    """Read a call that is a JSON object with name and arguments."""
    read = read_call(text, at, arguments_key="arguments", call_id=f"call_{number}")
    return CallPart(read.call or read.error, read.end)


def write_object(call: ToolCall, number: int) -> str:
    """Return a call as a JSON object with name and arguments."""
    return write_call(call, arguments_key="arguments")


def begin_object(tool: str) -> str:
    """Return the beginning of a call, up to its arguments, or with no name up to the name."""
    return begin_call(tool, arguments_key="arguments")


_SYNTAX = CallSyntax(
    open=OPEN,
    close=CLOSE,
    read=read_object,
    write=write_object,
    begin=begin_object,
    wanted=f'Write {OPEN}\n{{"name": "...", "arguments": {{...}}}}\n{CLOSE}',
    gap="\n",
    between="\n",
    inside=("\n", "\n"),
)
HERMES = make_dialect(
    "hermes",
    _SYNTAX,
    folder=Path(__file__).parent,
    special_tokens=("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    image_tokens=("<|vision_start|>", "<|image_pad|>", "<|vision_end|>"),
    end_of_turn="<|im_end|>",
    pad="<|endoftext|>",
)
GEMMA = make_dialect(
    "gemma",
    _SYNTAX,
    folder=Path(__file__).parent,
    special_tokens=("<pad>", "<bos>", "<start_of_turn>", "<end_of_turn>"),
    end_of_turn="<end_of_turn>",
    pad="<pad>",
    begin_of_text="<bos>",
)
"""Gemma 2 and 3, whose own templates know no tools, with the calls of Hermes."""
