"""Checks of a chat template as text; each returns what it saw, or raises `TemplateCheckError`."""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from agentrl.chat.template import ChatTemplate, describe_clock
from agentrl.chat.thinking import opened_thinking
from agentrl.chat.turn_renderer import (
    ANSWER,
    ASK,
    ASK_AGAIN,
    CALL,
    SPOKEN,
    TOOL,
    TOOL_NAME,
    tools_way_out,
)
from agentrl.message import Message, ToolCall

THOUGHT = "<think>\nfirst look\n</think>\n\n"
_SO = Message("assistant", "So.")


class TemplateCheckError(Exception):
    """A check failed; the text says what was seen."""


def expect(holds: bool, otherwise: str) -> None:
    """Raise `TemplateCheckError` with the text unless it holds."""
    if not holds:
        raise TemplateCheckError(otherwise)


def _keeps_still(template: ChatTemplate) -> str:
    fault = describe_clock(template.source)
    expect(not fault, fault)
    return "it writes no time of day"


def _shows_tools(template: ChatTemplate) -> str:
    text = template.render((ASK,), (TOOL,), generation_prompt=True)
    for phrase in (TOOL_NAME, "Where."):
        if phrase not in text:
            way = tools_way_out(template)
            raise TemplateCheckError(f"a tool's {phrase!r} is missing from the prompt; {way}")
    return "names and descriptions are in the prompt"


def _shows_answers(template: ChatTemplate) -> str:
    answers = (ANSWER, Message("tool", "snow", tool_call_id="call_1", name=TOOL_NAME))
    calls = (CALL, ToolCall("call_1", TOOL_NAME, {"place": "Quito"}))
    text = template.render((ASK, Message("assistant", "", tool_calls=calls), *answers))
    for call in calls:
        place = call.arguments["place"]
        expect(place in text, f"the call for {place!r} is not shown")
    for answer in answers:
        expect(answer.text in text, f"the answer {answer.text!r} is not shown")
    return "two calls of one turn and their answers are shown"


def _takes_system(template: ChatTemplate) -> str:
    text = template.render((Message("system", "Be brief."), ASK), (TOOL,))
    expect("Be brief." in text, "the system message is dropped")
    return "it is shown beside tools"


def _prompts(template: ChatTemplate) -> str:
    bare = template.render((ASK,))
    prompt = template.render((ASK,), generation_prompt=True).removeprefix(bare)
    past = template.render((ASK, Message("assistant", SPOKEN))).removeprefix(bare)
    header = past.partition(SPOKEN)[0]
    opens, thinks = opened_thinking(prompt)
    if opens != prompt and not header.startswith(prompt):
        expect(header.startswith(opens), f"it is {prompt!r}, and a past turn opens with {header!r}")
        return f"{prompt!r}, which {'opens' if thinks else 'holds'} a thinking block"
    expect(header.startswith(prompt), f"it is {prompt!r}, and a past turn opens with {header!r}")
    expect(
        bool(prompt) or not header.strip(), f"it is empty, and a past turn opens with {header!r}"
    )
    return repr(prompt)


def _ends_turns(template: ChatTemplate) -> str:
    text = template.render((ASK, Message("assistant", SPOKEN)))
    tail = text.partition(SPOKEN)[2]
    token = tail.strip()
    if not token:
        followed = template.render((ASK, Message("assistant", SPOKEN), ASK_AGAIN))
        ends = template.control.special_in(followed.partition(SPOKEN)[2])
        token = ends[0][0] if ends else ""
    expect(
        token in template.control.special,
        f"a turn ends with {tail!r}, which is not a single special token",
    )
    tokenizer = template.tokenizer
    ids = tokenizer.encode(token, add_special_tokens=False)
    expect(len(ids) == 1, f"{token!r} is {len(ids)} tokens")
    return f"{token!r}, id {ids[0]}"


def _keeps(template: ChatTemplate, said: Message, then: tuple[Message, ...]) -> str:
    """Check that a conversation is rendered as the beginning of a longer one."""
    before = template.render((ASK, said), (TOOL,)).rstrip()
    for more in (then[:1], then):
        after = template.render((ASK, said, *more), (TOOL,))
        if not after.startswith(before):
            at = next(i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b)
            near = slice(max(0, at - 10), at + 30)
            raise TemplateCheckError(
                f"{before[near]!r} becomes {after[near]!r} once {len(more)} more messages follow; "
                "agentrl keeps tokens as sampled, so the policy would train on contexts that this "
                "template does not render"
            )
    return "the earlier text is unchanged"


TEMPLATE_CHECKS: Mapping[str, Callable[[ChatTemplate], str]] = MappingProxyType(
    {
        "same at any time": _keeps_still,
        "shows tools": _shows_tools,
        "shows calls and answers": _shows_answers,
        "takes a system message": _takes_system,
        "generation prompt": _prompts,
        "end of turn is one special token": _ends_turns,
        "append-only after a tool turn": partial(
            _keeps, said=Message("assistant", "I look.", tool_calls=(CALL,)), then=(ANSWER, _SO)
        ),
        "append-only after a plain turn": partial(
            _keeps, said=Message("assistant", "Well."), then=(ASK_AGAIN, _SO)
        ),
        "append-only with earlier thinking": partial(
            _keeps,
            said=Message("assistant", f"{THOUGHT}Well."),
            then=(ASK_AGAIN, Message("assistant", f"{THOUGHT}So.")),
        ),
    }
)
