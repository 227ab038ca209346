"""Reading and writing of turns for every dialect whose calls stand between marks."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from agentrl.chat.call_json import (
    CALL_LIMITS,
    CALLS_MAX,
    NAME_MAX,
    TOO_MANY,
    read_arguments,
    skip_space,
)
from agentrl.chat.dialect import ToolCallDialect
from agentrl.chat.thinking import MARKS, Marks, find_spoken
from agentrl.env import Action
from agentrl.message import ToolCall
from agentrl.runtime.json_limits import JsonLimitError, check_json, check_text_bytes


@dataclass(frozen=True, slots=True)
class CallPart:
    """Result of reading one call: the call or its fault, and the end of it.

    `end` is None where nothing was read that could end.
    """

    result: ToolCall | str
    end: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSyntax:
    """The marks around calls, and how one call is read and written between them."""

    open: str
    """Begins a call, or a section of calls."""
    close: str = ""
    """Ends what `open` began; empty where the end of the turn or the next `open` does."""
    read: Callable[[str, int, int], CallPart]
    """Read the call at a position; the number is that of the call in its turn."""
    write: Callable[[ToolCall, int], str]
    """Return a call as `read` reads it."""
    begin: Callable[[str], str]
    """Return the beginning of a call of this tool, up to its arguments, or with no name up to the
    name."""
    wanted: str
    """Form of a call, for the answer to one that cannot be read."""
    section: bool = False
    """Whether several calls may stand between `open` and `close`."""
    separator: str = ""
    """Between two calls of a section; a reader need not find it."""
    gap: str = ""
    """Between what a turn says and its calls."""
    between: str = ""
    """Between two calls or sections."""
    inside: tuple[str, str] = ("", "")
    """Behind `open` and before `close`."""
    thinking: Marks = MARKS
    """Marks around thinking, in which no call is looked for."""
    write_id: Callable[[str, str], str] = lambda name, call_id: call_id
    """Return the id of a call of a tool as `write` writes it."""


def parse_turn(syntax: CallSyntax, text: str, start: int) -> Action:
    """Read a turn: any number of calls from `start` on, with text before, between and after."""
    texts: list[str] = []
    calls: list[ToolCall] = []
    malformed: list[str] = []
    read_to = 0
    while (begin := _find_open(syntax, text, max(start, read_to))) >= 0:
        text_before = text[read_to:begin]
        if not read_to or text_before.strip():
            texts.append(text_before.removesuffix(syntax.gap))
        room = CALLS_MAX - len(calls) - len(malformed)
        parts, read_to = _read_block(syntax, text, begin, number=len(calls))
        for part in parts[:room]:
            if isinstance(part, ToolCall):
                calls.append(_with_own_id(syntax, part, calls))
            else:
                malformed.append(f"Malformed tool call: {part}. {syntax.wanted}")
        if len(parts) > room:
            malformed.append(TOO_MANY)
            break
    else:
        rest = text[read_to:]
        texts.append(rest.removeprefix("\n") if read_to else rest)
    return Action("\n".join(part for part in texts if part), tuple(calls), tuple(malformed))


def write_turn(syntax: CallSyntax, text: str, calls: Sequence[ToolCall]) -> str:
    """Return the turn that says a text and makes calls."""
    written = [syntax.write(call, number) for number, call in enumerate(calls)]
    if syntax.section and written:
        written = [syntax.separator.join(written)]
    blocks = [
        f"{syntax.open}{syntax.inside[0]}{w}{syntax.inside[1]}{syntax.close}" for w in written
    ]
    joined = syntax.between.join(blocks)
    return f"{text}{syntax.gap}{joined}" if text and calls else text + joined


def make_dialect(name: str, syntax: CallSyntax, **further: Any) -> ToolCallDialect:
    """Return the dialect whose calls stand in this syntax; `further` are its other fields."""
    return ToolCallDialect(
        name=name,
        parse=partial(parse_turn, syntax),
        write=partial(write_turn, syntax),
        begin=lambda tool: f"{syntax.open}{syntax.inside[0]}{syntax.begin(tool)}",
        **further,
    )


def check_name(name: str) -> str:
    """Return the fault of a tool's name, or an empty text."""
    if not name:
        return "the name of the tool is missing"
    if len(name) > NAME_MAX:
        return f"the name of the tool has {len(name)} characters, but the limit is {NAME_MAX}"
    return ""


def check_arguments(name: str, arguments: Mapping[str, object], *, size: str) -> str:
    """Return the fault of a call whose arguments were read as text, or an empty text.

    `size` is the whole text of the call.
    """
    try:
        check_text_bytes(size, CALL_LIMITS)
        check_json({"name": name, "arguments": arguments}, CALL_LIMITS)
    except JsonLimitError as error:
        return str(error)
    return check_name(name)


def read_named(
    text: str,
    at: int,
    *,
    before: str = "",
    mark: str,
    after: str = "",
    section: Sequence[str],
    inner: Sequence[str] = (),
    call_id: str = "",
) -> CallPart:
    """Read a call that is `before`, a name, `mark`, the JSON of its arguments and `after`.

    Without a `call_id` the name is the id, too. No name holds a mark of `section`, around the calls
    of a turn, or of `inner`, around one of them.
    """
    at = skip_space(text, at)
    if not text.startswith(before, at):
        return CallPart(f"{before} is missing", None)
    name_at = at + len(before)
    position = text.find(mark, name_at, name_at + 2 * NAME_MAX + len(mark))
    name = text[name_at:position].strip()
    if position < 0 or any(other in name for other in (*section, *inner)):
        wrong = f"{mark.strip()} is missing behind the name"
    else:
        wrong = check_name(name)
    if wrong:
        return CallPart(wrong, _find_next(text, name_at, before=before, section=section))
    read = read_arguments(text, position + len(mark), name=name, call_id=call_id or name)
    result = read.call or read.error
    if read.end is None or not after:
        return CallPart(result, read.end)
    end = skip_space(text, read.end)
    if text.startswith(after.strip(), end):
        return CallPart(result, end + len(after.strip()))
    return CallPart(read.error or f"{after.strip()} is missing behind the arguments", None)


def _find_next(text: str, at: int, *, before: str, section: Sequence[str]) -> int | None:
    """Return the beginning of the next call of the same section, or None."""
    begin = text.find(before, at) if before else -1
    if begin < 0 or any(text.find(mark, at, begin) >= 0 for mark in section):
        return None
    return begin


def write_json(value: object) -> str:
    """Return a value as chat templates write JSON."""
    return json.dumps(value, ensure_ascii=False)


def _with_own_id(syntax: CallSyntax, call: ToolCall, earlier: Sequence[ToolCall]) -> ToolCall:
    """Return the call with an id that no earlier one has."""
    other_ids = {other.id for other in earlier}
    number = len(earlier)
    while call.id in other_ids:
        call = replace(call, id=syntax.write_id(call.name, f"call_{number}"))
        number += 1
    return call


def _find_open(syntax: CallSyntax, text: str, start: int) -> int:
    return find_spoken(text, syntax.open, start, syntax.thinking)


def _read_block(
    syntax: CallSyntax, text: str, begin: int, *, number: int
) -> tuple[list[ToolCall | str], int]:
    """Return the calls and faults of the block that opens at `begin`, and its end."""
    parts: list[ToolCall | str] = []
    at = begin + len(syntax.open)
    while len(parts) <= CALLS_MAX:
        part = syntax.read(text, at, number + len(parts))
        parts.append(part.result)
        if part.end is None:
            break
        if not syntax.close:
            return parts, part.end
        at = skip_space(text, part.end)
        if text.startswith(syntax.close, at):
            return parts, at + len(syntax.close)
        if syntax.section and text.startswith(mark := syntax.separator.strip(), at):
            at += len(mark)
            if skip_space(text, at) < len(text):
                continue
        if isinstance(part.result, ToolCall):
            # The calls of a section were made, though it has no end; a single one was not.
            parts[len(parts) - (not syntax.section) :] = [_missing_close(syntax, text, at)]
        break
    return parts, _end_of_broken(syntax, text, at)


def _missing_close(syntax: CallSyntax, text: str, at: int) -> str:
    close, reopened = text.find(syntax.close, at), text.find(syntax.open, at)
    if close < 0 or 0 <= reopened < close:
        return f"{syntax.close} is missing"
    return f"there is more than one call before {syntax.close}"


def _end_of_broken(syntax: CallSyntax, text: str, at: int) -> int:
    close = text.find(syntax.close, at) if syntax.close else -1
    reopened = text.find(syntax.open, at)
    if close < 0 or 0 <= reopened < close:
        return len(text) if reopened < 0 else reopened
    return close + len(syntax.close)
