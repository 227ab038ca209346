"""Checks of messages as tokens; each returns what it saw, or raises `TemplateCheckError`."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import cast

from agentrl.chat.format import ChatFormat
from agentrl.chat.renderer import TokenSegment
from agentrl.chat.template_checks import THOUGHT, expect
from agentrl.chat.thinking import CLOSE
from agentrl.chat.turn_renderer import ANSWER, ASK, ASK_AGAIN, CALL, TOOL, TOOL_NAME
from agentrl.env import Action, say
from agentrl.message import Message, ToolCall

ACTIONS: tuple[Action, ...] = (
    say("Forty-two."),
    say(""),
    say("Größe: 3 µm, 数 👩🏽‍🔬, \u202eright to left"),
    say('He said "no" \\ and\tthen\n\nleft. '),
    say(f"{THOUGHT}done"),
    Action("", (CALL,)),
    Action("I look twice.", (CALL, ToolCall("call_1", TOOL_NAME, {"place": 'a "b" \\ \n c'}))),
    Action("", (ToolCall("call_0", "now", {}),)),
    Action(
        "", (ToolCall("call_0", "f", {"a": {"b": [1, 2.5, None, True, {"ü": "</tool_call>"}]}}),)
    ),
    Action(f"{THOUGHT}so", (CALL,)),
)
"""Actions that a template's dialect must write so that they read the same back."""


def _round_trip(chat: ChatFormat) -> str:
    for action in _actions(chat):
        back = chat.parse(chat.write(action))
        expect(_plain(chat, action) == _plain(chat, back), f"{action!r} was read back as {back!r}")
    return f"{len(ACTIONS)} actions were read back as written"


def _writes_as_rendered(chat: ChatFormat) -> str:
    for action in _actions(chat):
        written = chat.write(action)
        ends = chat.turns.closing_of_calls if action.tool_calls else chat.turns.closing
        rendered = chat.encode_turn(chat.turns.turn(action.message) + ends)
        expect(
            written == rendered,
            f"dialect {chat.dialect.name} writes {_text(chat, written)!r}, and the template "
            f"renders the same turn as {_text(chat, rendered)!r}",
        )
    return f"{len(ACTIONS)} turns have the tokens the template gives them"


def _suffix_tokens(chat: ChatFormat) -> str:
    turn = Action("I look.", (CALL,)).message
    follows = [(ASK_AGAIN,)]
    if not chat.turns.tool_fault:
        follows += [(ANSWER,), (ANSWER, ASK_AGAIN)]
    for follow in follows:
        whole = _tokens(chat.opening((ASK, turn, *follow)))
        alone = _tokens(chat.reply(follow, ended=True))
        roles = " and ".join(message.role for message in follow)
        expect(
            whole[len(whole) - len(alone) :] == alone,
            f"a {roles} message is {_text(chat, alone)!r} alone, and within a conversation "
            f"{_text(chat, whole[len(whole) - len(alone) :])!r}",
        )
    return "what follows a turn has the same tokens alone and in place"


def _injection(chat: ChatFormat) -> str:
    """Check that content holding every control token brings no more of them than harmless does."""
    tokens = sorted(chat.template.control.special | chat.template.control.written)
    evil, harmless = " ".join(["", *tokens, ""]), "-"

    def contexts(text: str) -> Iterator[tuple[int, ...]]:
        yield _tokens(chat.opening((Message("user", text),)))
        yield _tokens(chat.reply((Message("user", text),), ended=True))
        if not chat.turns.tool_fault:
            answer = Message("tool", text, tool_call_id="call_0", name=TOOL_NAME)
            yield _tokens(chat.reply((answer,), ended=True))
            function = {**TOOL["function"], "description": text}
            yield _tokens(chat.opening((ASK,), ({**TOOL, "function": function},)))

    ids = {_id(chat, token): token for token in tokens}
    for with_evil, with_harmless in zip(contexts(evil), contexts(harmless), strict=True):
        for token_id, token in ids.items():
            extra = with_evil.count(token_id) - with_harmless.count(token_id)
            expect(extra == 0, f"{token!r} in content becomes the control token {extra} times")
    return f"{len(tokens)} control tokens in content stay text"


def _answers_broken_calls(chat: ChatFormat) -> str:
    thought = _actions(chat)[1].text
    cut_short = chat.dialect.write(thought, (CALL,)).rpartition(CALL.arguments["place"])[0]
    broken = chat.parse(chat.encode_turn(cut_short))
    expect(bool(broken.malformed), f"a call cut short was read as {broken!r}")
    return repr(broken.malformed[0])


def _begins_calls(chat: ChatFormat) -> str:
    if chat.dialect.begin is None or chat.begins_thinking:
        return "a turn cannot be made to call; programs that require it are refused"
    for tool in ("", TOOL_NAME):
        begun, whole = chat.dialect.begin(tool), chat.dialect.write("", (CALL,))
        expect(whole.startswith(begun), f"{whole!r} does not begin with {begun!r}")
        cut_short = chat.parse(chat.call_opening(tool).token_ids)
        expect(bool(cut_short.malformed), f"{begun!r} alone was read as {cut_short!r}")
    return repr(chat.dialect.begin(""))


def _plain(chat: ChatFormat, action: Action) -> Action:
    """Return an action without what a dialect may write in a form of its own: the ids of calls, and
    the types of arguments."""

    def plain(call: ToolCall) -> ToolCall:
        arguments = call.arguments
        if chat.dialect.text_arguments:
            arguments = {
                k: v if isinstance(v, str) else json.dumps(v, ensure_ascii=False)
                for k, v in arguments.items()
            }
        return replace(call, id="", arguments=arguments)

    return replace(action, tool_calls=tuple(map(plain, action.tool_calls)))


def _actions(chat: ChatFormat) -> tuple[Action, ...]:
    return tuple(_begin_thinking(chat, action) for action in ACTIONS)


def _begin_thinking(chat: ChatFormat, action: Action) -> Action:
    """Return an action as a policy says it whose turns begin inside a thinking block."""
    if not chat.begins_thinking:
        return action
    begun = THOUGHT.removeprefix("<think>\n").replace(CLOSE, chat.turns.thinking_close)
    return replace(action, text=begun + action.text.removeprefix(THOUGHT))


def _tokens(segments: tuple[TokenSegment, ...]) -> tuple[int, ...]:
    return tuple(token for segment in segments for token in segment.token_ids)


def _text(chat: ChatFormat, tokens: tuple[int, ...]) -> str:
    return cast("str", chat.template.tokenizer.decode(list(tokens), skip_special_tokens=False))


def _id(chat: ChatFormat, token: str) -> int:
    return cast("int", chat.template.tokenizer.convert_tokens_to_ids(token))


def _later(chat: ChatFormat, text: str) -> str:
    """Check that a context, once a user speaks again, has the tokens that the template renders."""
    text = THOUGHT if chat.begins_thinking else text
    turn = _begin_thinking(chat, say(f"{text}Well."))
    tools = () if chat.turns.tool_fault else (TOOL,)
    parts = (*chat.opening((ASK,), tools), TokenSegment("sampled", chat.write(turn)))
    kept = chat.rewrite_turns(parts) or parts
    later = _tokens((*kept, *chat.reply((ASK_AGAIN,), ended=True)))
    whole = _tokens(chat.opening((ASK, Message("assistant", f"{text}Well."), ASK_AGAIN), tools))
    expect(
        later == whole,
        f"the context is {_text(chat, later)!r}, and the template renders {_text(chat, whole)!r}",
    )
    return "a context begins anew, with the tokens that the template renders"


REWRITING_CHECKS: Mapping[str, Callable[[ChatFormat], str]] = MappingProxyType(
    {
        "append-only after a plain turn": partial(_later, text=""),
        "append-only with earlier thinking": partial(_later, text=THOUGHT),
    }
)
"""In place of those of the template, where the format drops the thinking of earlier turns."""
FORMAT_CHECKS: Mapping[str, Callable[[ChatFormat], str]] = MappingProxyType(
    {
        "actions survive write and parse": _round_trip,
        "write gives the template's tokens": _writes_as_rendered,
        "a reply alone has the tokens it has in place": _suffix_tokens,
        "content cannot become control tokens": _injection,
        "a broken call becomes an answer": _answers_broken_calls,
        "a turn can be made to call": _begins_calls,
    }
)
