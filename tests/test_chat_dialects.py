"""Reading calls out of text. Mutants these tests were seen to kill: the closing tag searched for
instead of read after the JSON; thinking searched for calls; the surrogate and NaN check left out;
`RecursionError` not caught; the tag looked for inside a call's arguments."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.chat.dialect import Dialect
from agentrl.chat.dialects.hermes import HERMES
from agentrl.chat.dialects.llama3 import LLAMA3
from agentrl.chat.thinking import find_spoken
from agentrl.env import Action
from agentrl.message import ToolCall

F = ToolCall("call_0", "f", {"a": 1})
HERMES_F = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
LLAMA_F = '{"name": "f", "parameters": {"a": 1}}'


@pytest.mark.parametrize(
    ("text", "action"),
    [
        (HERMES_F, Action("", (F,))),
        (f"I try.\n{HERMES_F}", Action("I try.", (F,))),
        (f"I try.{HERMES_F}\n\nDone.", Action("I try.\n\nDone.", (F,))),
        (HERMES_F.replace("\n", ""), Action("", (F,))),
        (f"{HERMES_F}\n{HERMES_F}", Action("", (F, ToolCall("call_1", "f", {"a": 1})))),
        (f"<think>{HERMES_F}</think>no", Action(f"<think>{HERMES_F}</think>no")),
        (f"<think>{HERMES_F}", Action(f"<think>{HERMES_F}")),
        (f"<think>x</think>{HERMES_F}", Action("<think>x</think>", (F,))),
        (f"a </think> b {HERMES_F}", Action("a </think> b ", (F,))),
        (
            '<tool_call>{"name": "f", "arguments": {"a": "</tool_call><think>"}}</tool_call>',
            Action("", (ToolCall("call_0", "f", {"a": "</tool_call><think>"}),)),
        ),
        ("the </tool_call> tag", Action("the </tool_call> tag")),
    ],
)
def test_hermes(text: str, action: Action) -> None:
    assert HERMES.parse(text, 0) == action


@pytest.mark.parametrize(
    ("text", "action"),
    [
        (LLAMA_F, Action("", (F,))),
        (f"\n {LLAMA_F} \n", Action("", (F,))),
        (f"I try.<|python_tag|>{LLAMA_F}", Action("I try.", (F,))),
        (f"{LLAMA_F}; {LLAMA_F}", Action("", (F, ToolCall("call_1", "f", {"a": 1})))),
        (f"{LLAMA_F}\n{LLAMA_F}", Action("", (F, ToolCall("call_1", "f", {"a": 1})))),
        ('{"type": "function", ' + LLAMA_F[1:], Action("", (F,))),
        (f"<think>x</think>\n{LLAMA_F}", Action("<think>x</think>", (F,))),
        (f"<think><|python_tag|>{LLAMA_F}", Action(f"<think><|python_tag|>{LLAMA_F}")),
        (f"Write {LLAMA_F}", Action(f"Write {LLAMA_F}")),
        ('{"answer": 42}', Action('{"answer": 42}')),
        (
            '{"name": "f", "parameters": {"a": "<|python_tag|>"}}',
            Action("", (ToolCall("call_0", "f", {"a": "<|python_tag|>"}),)),
        ),
    ],
)
def test_llama3(text: str, action: Action) -> None:
    assert LLAMA3.parse(text, 0) == action


BROKEN = [
    ('{"name": "f", "arguments": {"a": 1}', "broken JSON"),
    ("print(1)", "broken JSON: Expecting value at character 0"),
    ("", "broken JSON"),
    ('{"arguments": {}}', '"name" is missing'),
    ('{"name": "", "arguments": {}}', '"name" is missing'),
    ('{"name": 1, "arguments": {}}', '"name" is missing or is no text'),
    ('{"name": "f"}', '"arguments" is missing'),
    ('{"name": "f", "arguments": [1]}', '"arguments" must be an object, not a list'),
    ('{"name": "f", "arguments": "{}"}', '"arguments" must be an object, not a text'),
    ('{"name": "f", "arguments": null}', '"arguments" must be an object, not null'),
    ("[]", "a call is a JSON object, not a list"),
    ('{"name": "f", "arguments": {"a": NaN}}', "not finite"),
    ('{"name": "f", "arguments": {"a": 1e999}}', "not finite"),
    ('{"name": "f", "arguments": {"a": "\\ud800"}}', "not valid Unicode"),
    ('{"name": "f", "arguments": {"a": ' + "9" * 5000 + "}}", "too many digits"),
    ('{"name": "f", "arguments": ' + "[" * 100_000, "nested too deeply"),
]


@pytest.mark.parametrize(("call", "problem"), BROKEN)
def test_broken_calls_say_what_is_wrong(call: str, problem: str) -> None:
    action = HERMES.parse(f"So:\n<tool_call>\n{call}\n</tool_call>", 0)
    assert (action.text, action.tool_calls, len(action.malformed)) == ("So:", (), 1)
    assert problem in action.malformed[0]
    assert '{"name": "...", "arguments": {...}}' in action.malformed[0]

    action = LLAMA3.parse("So:<|python_tag|>" + call.replace("arguments", "parameters"), 0)
    assert (action.text, action.tool_calls, len(action.malformed)) == ("So:", (), 1)
    assert problem.replace("arguments", "parameters") in action.malformed[0]
    assert '{"name": "...", "parameters": {...}}' in action.malformed[0]


def test_one_broken_call_leaves_the_others() -> None:
    broken = "<tool_call>\n{oops\n</tool_call>"
    unclosed = '<tool_call>\n{"name": "g", "arguments": {}}\n'
    action = HERMES.parse(f"{broken}\n{unclosed}{HERMES_F}\n{unclosed}", 0)
    assert action.tool_calls == (F,)
    assert [
        "broken JSON" in action.malformed[0],
        "</tool_call> is missing" in action.malformed[1],
        "</tool_call> is missing" in action.malformed[2],
    ] == [True] * 3
    assert len(action.malformed) == 3


def test_a_call_has_one_object() -> None:
    action = HERMES.parse('<tool_call>{"name": "f", "arguments": {}} {}</tool_call> x', 0)
    assert "more than one JSON object" in action.malformed[0]
    assert action.text == " x"
    action = LLAMA3.parse(f"{LLAMA_F} and so on", 0)
    assert action.tool_calls == (F,)
    assert "there is text after it" in action.malformed[0]


fragments = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "<think>", "</think>", "<|python_tag|>", "\n", ";", "x"),
        *('{"name": "f"', ', "arguments": {}', ', "parameters": {}', "}", "{", "[", '"', "\\"),
        *("NaN", "-", "1e9", "\ud800", "\x00", '{"type"', HERMES_F, LLAMA_F),
    ]
)


@pytest.mark.parametrize("dialect", [HERMES, LLAMA3], ids=["hermes", "llama3"])
@given(text=st.lists(fragments, max_size=12).map("".join) | st.text(), start=st.integers(0, 20))
def test_any_text_can_be_read(dialect: Dialect, text: str, start: int) -> None:
    """Nothing raises, and what is left of a text was in it."""
    action = dialect.parse(text, min(start, len(text)))
    assert all(call.name for call in action.tool_calls)
    assert len(action.text) <= len(text)
    if not action.tool_calls and not action.malformed:
        assert action.text == text


@given(text=st.lists(st.sampled_from(["<think>", "</think>", "@", " "])).map("".join))
def test_spoken_is_outside_thinking(text: str) -> None:
    found = find_spoken(text, "@", 0)
    said: list[str] = []
    rest = text
    while "<think>" in rest:
        before, _, rest = rest.partition("<think>")
        thought, closed, rest = rest.partition("</think>")
        said.append(before + "." * len("<think>" + thought + closed))
    assert found == "".join([*said, rest]).find("@")
