"""Parsers of every dialect: what they read, what they refuse, and how long they take.

Mutants seen caught: a value that ends at the first closing tag; a call in thinking counted; a call
whose end is missing made; arguments beyond a limit kept; one argument written twice; text after a
call dropped; the number of calls unlimited; a text typed where a schema takes texts. Of Python's
notation: its words as they are; a quote not escaped, or its escape kept; arguments behind a bracket
too many dropped. A name that reaches into the next call; two calls with one id; a key read twice.
A schema's `nullable` passed over.
"""

import ast
import time
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.chat.call_json import CALLS_MAX
from agentrl.chat.dialect import ToolCallDialect
from agentrl.chat.dialects import DIALECTS
from agentrl.chat.dialects.gemma4 import GEMMA4
from agentrl.chat.dialects.harmony import HARMONY
from agentrl.chat.dialects.listed_calls import LFM2
from agentrl.chat.dialects.named_calls import (
    CALL_BEGIN,
    CALL_END,
    CALLS_BEGIN,
    CALLS_END,
    KIMI_K2,
    SEP,
    write_kimi_id,
)
from agentrl.env import Action
from agentrl.message import ToolCall
from agentrl.runtime.argument_types import type_arguments

F = ToolCall("call_0", "f", {"a": "1"})
TWO = (F, ToolCall("call_1", "g_2", {"x": "y\nz", "path": "/tmp"}))
DEEP = ToolCall("call_0", "f", {"a": {"b": [{"c": 'd "e" \\ }'}], "n": 1.5, "t": True, "z": None}})
DIALECT_NAMES = sorted(DIALECTS)
NOTATION = [name for name in DIALECT_NAMES if not DIALECTS[name].text_arguments]


def plain(calls: tuple[ToolCall, ...]) -> list[tuple[str, dict[str, object]]]:
    return [(call.name, dict(call.arguments)) for call in calls]


@pytest.mark.parametrize("name", DIALECT_NAMES)
def test_calls_come_back_as_written(name: str) -> None:
    dialect = DIALECTS[name]
    for said in ("", "I look."):
        for calls in ((), (F,), TWO):
            action = dialect.parse(dialect.write(said, calls), 0)
            assert (action.text, plain(action.tool_calls)) == (said, plain(calls))
            assert not action.malformed
            assert len({call.id for call in action.tool_calls}) == len(calls)


@pytest.mark.parametrize("name", NOTATION)
def test_values_come_back_with_their_types(name: str) -> None:
    dialect = DIALECTS[name]
    assert plain(dialect.parse(dialect.write("", (DEEP,)), 0).tool_calls) == plain((DEEP,))


QWEN = "<tool_call>\n<function=f>\n<parameter=a>\n{}\n</parameter>\n</function>\n</tool_call>"
THOUGHT = f"<think>{QWEN.format('1')}</think>"
GLM = "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>{}</arg_value>\n</tool_call>"
DSML = (
    '<\uff5cDSML\uff5cfunction_calls>\n<\uff5cDSML\uff5cinvoke name="f">\n'
    '<\uff5cDSML\uff5cparameter name="a" string="{}">{}</\uff5cDSML\uff5cparameter>\n'
    "</\uff5cDSML\uff5cinvoke>\n</\uff5cDSML\uff5cfunction_calls>"
)
KIMI = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:3<|tool_call_argument_begin|>"
    '{"a": "1"}<|tool_call_end|><|tool_calls_section_end|>'
)
GEMMA_F = '<|tool_call>call:f{a:<|"|>1<|"|>}<tool_call|>'
HERMES_F = '<tool_call>\n{"name": "f", "arguments": {"a": "1"}}\n</tool_call>'
LFM2_START, LFM2_END = "<|tool_call_start|>", "<|tool_call_end|>"
LFM2_F = f"{LFM2_START}[f(a='1')]{LFM2_END}"
HARMONY_F = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": "1"}'


def calling(*values: str) -> tuple[ToolCall, ...]:
    return tuple(ToolCall(f"call_{i}", "f", {"a": value}) for i, value in enumerate(values))


GOLDEN: list[tuple[str, str, Action]] = [
    ("qwen3_coder", QWEN.format("1"), Action("", (F,))),
    ("qwen3_coder", "So.\n\n" + QWEN.format("1") + "\nDone.", Action("So.\nDone.", (F,))),
    ("qwen3_coder", QWEN.format("</parameter>"), Action("", calling("</parameter>"))),
    ("qwen3_coder", QWEN.format("</tool_call>"), Action("", calling("</tool_call>"))),
    ("qwen3_coder", QWEN.format("\n a \n"), Action("", calling("\n a \n"))),
    ("qwen3_coder", f"{THOUGHT}no", Action(f"{THOUGHT}no")),
    ("qwen3_coder", f"<think>{QWEN.format('1')}", Action(f"<think>{QWEN.format('1')}")),
    (
        "qwen3_coder",
        "<tool_call><function=f></function></tool_call>",
        Action("", (ToolCall("call_0", "f", {}),)),
    ),
    ("glm_4_5", GLM.format("1"), Action("", (F,))),
    ("glm_4_5", GLM.format("1").replace("\n", ""), Action("", (F,))),
    ("glm_4_5", "<tool_call>f\n</tool_call>", Action("", (ToolCall("call_0", "f", {}),))),
    ("glm_4_5", "<tool_call>f</tool_call>", Action("", (ToolCall("call_0", "f", {}),))),
    ("glm_4_7", GLM.format("</arg_value>"), Action("", calling("</arg_value>"))),
    ("deepseek_v32", DSML.format("true", "1"), Action("", (F,))),
    (
        "deepseek_v32",
        DSML.format("false", "[1]"),
        Action("", (ToolCall("call_0", "f", {"a": [1]}),)),
    ),
    (
        "deepseek_v32",
        DSML.format("false", '\n {"x": 1}\t\r\n'),
        Action("", (ToolCall("call_0", "f", {"a": {"x": 1}}),)),
    ),
    ("deepseek_v32", DSML.format("true", " 1\n"), Action("", calling(" 1\n"))),
    ("kimi_k2", KIMI, Action("", (ToolCall("functions.f:3", "f", {"a": "1"}),))),
    ("kimi_k2", f"Hm {KIMI} so", Action("Hm \n so", (ToolCall("functions.f:3", "f", {"a": "1"}),))),
    (
        "mistral",
        '[TOOL_CALLS]f[ARGS]{"a": "1"}[TOOL_CALLS]f[ARGS]{"a": "2"}',
        Action("", calling("1", "2")),
    ),
    ("mistral", '[TOOL_CALLS]f[ARGS]{"a": "[TOOL_CALLS]"}', Action("", calling("[TOOL_CALLS]"))),
    ("mistral_v3", '[TOOL_CALLS] [{"name": "f", "arguments": {"a": "1"}}]', Action("", (F,))),
    (
        "nemotron",
        'So.<TOOLCALL>[{"name": "f", "arguments": {"a": "]</TOOLCALL>"}}]</TOOLCALL>',
        Action("So.", calling("]</TOOLCALL>")),
    ),
    ("gemma4", GEMMA_F, Action("", (F,))),
    (
        "gemma4",
        f"<|channel>thought\n{GEMMA_F}\n<channel|>no",
        Action(f"<think>\n{GEMMA_F}\n</think>\n\nno"),
    ),
    ("gemma4", f"<|channel>thought\n{GEMMA_F}", Action(f"<think>\n{GEMMA_F}")),
    (
        "gemma4",
        '<|tool_call>call:f{a:[1,{b:true}],<|"|>c d<|"|>:null}<tool_call|>',
        Action("", (ToolCall("call_0", "f", {"a": [1, {"b": True}], "c d": None}),)),
    ),
    ("harmony", HARMONY_F, Action("", (F,))),
    # As openai-harmony and vLLM read it, which need no channel of a message to a function.
    ("harmony", ' to=functions.f<|message|>{"a": "1"}<|call|>', Action("", (F,))),
    # As vLLM and the families' parsers read it: marks count wherever they stand but in thinking.
    ("hermes", f"`{HERMES_F}` does it.", Action("`\n` does it.", (F,))),
    ("hermes", f"```\n{HERMES_F}\n```", Action("```\n```", (F,))),
    ("lfm2", LFM2_F, Action("", (F,))),
    (
        "lfm2",
        f"{LFM2_START}[f(a=-1.5e3, b=[True, false, None], c={{'d': 'it\\'s'}}), g()]{LFM2_END}So.",
        Action(
            "So.",
            (
                ToolCall(
                    "call_0", "f", {"a": -1.5e3, "b": [True, False, None], "c": {"d": "it's"}}
                ),
                ToolCall("call_1", "g", {}),
            ),
        ),
    ),
    (
        "lfm2",
        LFM2_F.replace("'1'", "'say \"\\d\\x41\\n\"'"),
        Action("", (ToolCall("call_0", "f", {"a": 'say "\\dA\n"'}),)),
    ),
    ("harmony", "Just words, to=functions.f too.", Action("Just words, to=functions.f too.")),
    (
        "harmony",
        "<|channel|>analysis<|message|>so<|end|><|start|>assistant" + HARMONY_F,
        Action("<think>\nso\n</think>\n\n", (F,)),
    ),
    ("harmony", "<|channel|>final<|message|>42<|return|>", Action("42")),
]


@pytest.mark.parametrize(("name", "text", "action"), GOLDEN)
def test_turns_are_read(name: str, text: str, action: Action) -> None:
    assert DIALECTS[name].parse(text, 0) == action


V31 = CALLS_BEGIN + CALL_BEGIN + "f" + SEP + "{}" + CALL_END + CALLS_END
BROKEN: list[tuple[str, str, str]] = [
    (
        "qwen3_coder",
        QWEN.replace("</function>\n", ""),
        "</parameter> is missing behind the argument 'a'",
    ),
    ("qwen3_coder", QWEN[: QWEN.index("</parameter>")], "</parameter> is missing"),
    ("qwen3_coder", "<tool_call>f</tool_call>", "<function= is missing"),
    ("qwen3_coder", QWEN.replace("=f>", "=>"), "the name of the tool is missing"),
    ("qwen3_coder", QWEN.replace("=f>", f"={'f' * 257}>"), "257 characters, but the limit is 256"),
    (
        "qwen3_coder",
        QWEN.replace("</function>", "<parameter=a>\n2\n</parameter>\n</function>"),
        "'a' is written twice",
    ),
    ("qwen3_coder", QWEN.format("\0"), "NUL"),
    ("qwen3_coder", QWEN.format("\ud800"), "not valid Unicode"),
    ("qwen3_coder", QWEN.format("x" * 300_000), "the limit is 262144"),
    ("glm_4_5", GLM.replace("</arg_value>", ""), "</arg_value> is missing"),
    ("glm_4_5", "<tool_call>\n</tool_call>", "the name of the tool is missing"),
    ("deepseek_v32", DSML.format("false", "{"), "broken JSON"),
    ("deepseek_v32", DSML.format("false", '{"b": 1, "b": 2}'), "the key 'b' twice"),
    ("deepseek_v32", DSML.format("false", "1 2"), "more than one value"),
    ("deepseek_v32", DSML.format("false", "[" * 5_000 + "]" * 5_000), "nested more than 64 deep"),
    ("deepseek_v31", V31.replace("{}", "[" * 100_000), "nested more than 64 deep"),
    ("deepseek_v31", V31.replace("{}", '{"a": ' + "9" * 5_000 + "}"), "more than 308 digits"),
    ("deepseek_v31", V31.replace("{}", '{"a": NaN}'), "not finite"),
    ("deepseek_v31", V31.replace("{}", '{"a": "\\ud800"}'), "not valid Unicode"),
    ("deepseek_v31", V31.replace("{}", '{"a": 1, "a": 2}'), "the key 'a' twice"),
    ("deepseek_v31", V31.replace("{}", "[1]"), '"arguments" must be an object'),
    ("deepseek_v31", V31.replace(CALLS_END, ""), f"{CALLS_END} is missing"),
    ("deepseek_v31", V31.replace(CALL_END, ""), f"{CALL_END} is missing"),
    ("kimi_k2", KIMI.replace(":3", ""), "functions.NAME:NUMBER"),
    ("mistral", "[TOOL_CALLS]f", "[ARGS] is missing"),
    ("mistral", '[TOOL_CALLS]f[ARGS]{"a"', "broken JSON"),
    ("mistral_v11", "[TOOL_CALLS]f[ARGS]{}", "nine letters"),
    ("mistral_v3", '[TOOL_CALLS][{"name": "f"}]', '"arguments" is missing'),
    ("gemma4", "<|tool_call>call:f{a:" + "[" * 70, "nested more than 64 deep"),
    ("gemma4", "<|tool_call>call:f{a:" + "9" * 309 + "}<tool_call|>", "more than 308 digits"),
    ("gemma4", "<|tool_call>call:f{a:NaN}<tool_call|>", "not finite"),
    ("gemma4", "<|tool_call>call:f{a:text}<tool_call|>", "one JSON value"),
    ("gemma4", GEMMA_F.removesuffix("<tool_call|>"), "<tool_call|> is missing"),
    ("gemma4", GEMMA_F.replace("a:", ""), ": is missing"),
    ("harmony", HARMONY_F.replace("functions.f", "python"), "not to 'python'"),
    ("harmony", HARMONY_F + " and", "text behind the arguments"),
    ("harmony", HARMONY_F.partition("<|message|>")[0], "<|message|> is missing"),
    ("lfm2", LFM2_F.replace("f(", "("), "the name of the tool is missing"),
    ("lfm2", LFM2_F.replace("a='1'", "'1'"), "broken JSON"),
    ("lfm2", LFM2_F.replace("a='1'", "a='1"), "nothing of a call at character 24"),
    ("lfm2", LFM2_F.replace("'1'", "'it's'"), "nothing of a call"),
    ("lfm2", LFM2_F.replace("'1'", "g(1)"), "broken JSON"),
    ("lfm2", LFM2_F.replace("'1'", "open"), "broken JSON"),
    ("lfm2", LFM2_F.replace("'1'", "nan"), "broken JSON"),
    ("lfm2", LFM2_F.replace("1", "1" * 2**18), "bytes"),
    ("lfm2", LFM2_F.replace("'1'", "9" * 5_000), "more than 308 digits"),
    ("lfm2", LFM2_F.replace("'1'", "[" * 99 + "]" * 99), "nested more than 64 deep"),
    ("lfm2", LFM2_F.replace("1", "\\0"), "NUL"),
    ("lfm2", LFM2_F.replace("1", "\\U0000d800"), "not valid Unicode"),
    ("lfm2", LFM2_F.replace("'1'", "1, a=2"), "twice"),
    ("lfm2", LFM2_F.replace("'1'", "{'b': 1, \"b\": 2}"), "twice"),
    ("lfm2", LFM2_F.replace("'1'", "{'b': 1}}, c=2"), "a } ends the arguments"),
    ("lfm2", LFM2_F.replace("'1'", "1}, {b=2"), "a } ends the arguments"),
    ("lfm2", LFM2_F.removesuffix(LFM2_END), f"{LFM2_END} is missing"),
    ("harmony", HARMONY_F.removesuffix("}"), "broken JSON"),
]


@pytest.mark.parametrize(("name", "text", "problem"), BROKEN)
def test_broken_calls_say_what_is_wrong(name: str, text: str, problem: str) -> None:
    action = DIALECTS[name].parse(text, 0)
    assert len(action.malformed) == 1
    assert problem in action.malformed[-1]
    assert "Write " in action.malformed[-1]


@pytest.mark.parametrize(
    ("call_id", "name", "written"),
    [
        ("step:3", "search", "functions.search:3"),
        ("functions.step:3", "search", "functions.search:3"),
        ("functions.f:3", "functions.f", "functions.functions.f:3"),
        ("search:3", "search", "search:3"),
        ("functions.search:3", "search", "functions.search:3"),
        ("functions.a:b:3", "a:b", "functions.a:b:3"),
        ("call_3", "search", "functions.search:3"),
        ("functions.search:3", "", "functions.search:3"),
    ],
)
def test_an_id_of_kimi_names_the_tool_of_its_call(call_id: str, name: str, written: str) -> None:
    assert write_kimi_id(name, call_id) == written
    if name:
        call = ToolCall(call_id, name, {})
        read = KIMI_K2.parse(KIMI_K2.write("", (call,)), 0)
        assert read.tool_calls == (replace(call, id=written),)


@pytest.mark.parametrize(
    ("call_ids", "name", "expected"),
    [
        (["f:0", "f:0", "f:0"], "kimi_k2", ["f:0", "functions.f:1", "functions.f:2"]),
        (["functions.f:1"] * 2, "kimi_k2", ["functions.f:1", "functions.f:2"]),
        (["abcdefgh1"] * 2, "mistral_v11", ["abcdefgh1", "call00001"]),
        (["call00001"] * 2, "mistral_v11", ["call00001", "call00002"]),
    ],
)
def test_every_call_of_a_turn_has_an_id_of_its_own(
    call_ids: list[str], name: str, expected: list[str]
) -> None:
    dialect = DIALECTS[name]
    text = dialect.write("", [replace(F, id=call_id) for call_id in call_ids])
    calls = dialect.parse(text, 0).tool_calls
    assert [call.id for call in calls] == expected
    assert dialect.parse(dialect.write("", calls), 0).tool_calls == calls


def test_calls_of_several_sections_have_ids_of_their_own() -> None:
    dialect = DIALECTS["deepseek_v31"]
    broken = dialect.write("", [replace(F, name=name) for name in "fgh"]).replace(f"g{SEP}", "g")
    calls = dialect.parse(broken + dialect.write("", (F,)), 0).tool_calls
    assert [call.id for call in calls] == ["call_0", "call_2", "call_3"]


NAME_MARKS = {
    "kimi_k2": "<|tool_call_argument_begin|>",
    "deepseek_v3": "\n```json\n",
    "deepseek_v31": SEP,
    "mistral": "[ARGS]",
    "mistral_v11": "[ARGS]",
    "gemma4": "{",
}


@pytest.mark.parametrize("gap", ["", "x" * 600], ids=["near", "far"])
@pytest.mark.parametrize("name", NAME_MARKS)
def test_a_name_does_not_reach_into_the_next_call(name: str, gap: str) -> None:
    dialect, mark = DIALECTS[name], NAME_MARKS[name]
    sections = f"{dialect.write('', TWO[:1])}\nSo.\n{dialect.write('', TWO[1:])}"
    for turn, text in ((dialect.write("", TWO), ""), (sections, "So.")):
        action = dialect.parse(turn.replace(mark, gap, 1), 0)
        assert plain(action.tool_calls) == plain(TWO[1:])
        assert len(action.malformed) == 1
        assert f"{mark.strip()} is missing behind the name" in action.malformed[0]
        assert action.text.strip() == ("" if "mistral" in name else text)


@pytest.mark.parametrize("end", [CALL_BEGIN, CALL_END, SEP, CALLS_BEGIN, CALLS_END])
def test_a_name_holds_no_mark(end: str) -> None:
    text = DIALECTS["deepseek_v3"].write("", (F,)).replace("f\n", f"f{end}\n")
    assert not DIALECTS["deepseek_v3"].parse(text, 0).tool_calls


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
def test_any_text_comes_back_from_the_notation_of_python(text: str) -> None:
    call = ToolCall("call_0", "f", {"a": text, "b": {"c": text}, "d": [text]})
    assert LFM2.parse(LFM2.write("", (call,)), 0).tool_calls == (call,)


ESCAPES = (*"abfnrtv\\'1\n", "12", "0123", "377", "18", "x41", "u00e9", "U0001F600", "U0010ffff")


@given(st.lists(st.sampled_from([*(f"\\{e}" for e in ESCAPES), "7", "f", '"', "\t"])).map("".join))
def test_escapes_of_python_are_read_as_python_does(text: str) -> None:
    (call,) = LFM2.parse(LFM2_F.replace("'1'", f"'{text}'"), 0).tool_calls
    assert call.arguments == {"a": ast.literal_eval(f"'{text}'")}


@pytest.mark.parametrize("text", ["\\d", "\\x4", "\\U00110000", "\\UFFFFFFFF", "\\U0001F6", "\\9"])
def test_what_is_no_escape_stays_as_it_is(text: str) -> None:
    (call,) = LFM2.parse(LFM2_F.replace("1", text), 0).tool_calls
    assert call.arguments == {"a": text}


@pytest.mark.parametrize("key", ["a-b", "$filter", "@type", "a/b.c", "é", "a\\b", "1"])
def test_names_of_arguments_come_back_from_the_notation_of_python(key: str) -> None:
    call = ToolCall("call_0", "f", {key: "x", "z": -1.5})
    assert LFM2.parse(LFM2.write("", (call,)), 0).tool_calls == (call,)


@pytest.mark.parametrize("name", DIALECT_NAMES)
def test_a_turn_has_so_many_calls(name: str) -> None:
    dialect = DIALECTS[name]
    calls = [replace(F, id=f"call_{i}") for i in range(CALLS_MAX + 9)]
    action = dialect.parse(dialect.write("", calls), 0)
    assert len(action.tool_calls) == CALLS_MAX
    assert "at most 64 calls" in action.malformed[-1]
    assert not dialect.parse(dialect.write("", calls[:CALLS_MAX]), 0).malformed


def pieces(dialect: ToolCallDialect) -> list[str]:
    """Return what a turn of a dialect is made of, and what breaks it."""
    written = dialect.write("", (F,))
    begun = [dialect.begin(tool) for tool in ("", "f")] if dialect.begin else []
    cuts = [written[: len(written) * part // 8] for part in range(1, 8)]
    return [written, *begun, *cuts, *(written[len(cut) :] for cut in cuts)]


@pytest.mark.parametrize("name", DIALECT_NAMES)
@given(data=st.data())
def test_any_text_can_be_read(name: str, data: st.DataObject) -> None:
    dialect = DIALECTS[name]
    extra = ["<think>", "</think>", "\n", "x", "[", "{", '"', ":", ",", "\ud800", "\0", "9" * 400]
    parts = st.sampled_from([*pieces(dialect), *extra])
    text = data.draw(st.lists(parts, max_size=10).map("".join) | st.text())
    action = dialect.parse(text, data.draw(st.integers(0, len(text))))
    assert all(call.name for call in action.tool_calls)
    assert len(action.tool_calls) + len(action.malformed) <= CALLS_MAX + 1
    if name not in ("harmony", "gemma4") and not action.tool_calls and not action.malformed:
        assert action.text == text


@pytest.mark.parametrize("name", DIALECT_NAMES)
def test_reading_takes_time_in_proportion(name: str) -> None:
    """Sixteen times the text takes less than a hundred times as long, and not 256 times."""
    dialect = DIALECTS[name]

    def taken_s(text: str) -> float:
        began = time.process_time()
        dialect.parse(text, 0)
        return time.process_time() - began

    units = [*pieces(dialect), "a", " ", "[", "\n", "<think></think>"]
    openings = ["", (dialect.begin or str)("f"), dialect.write("", (F,))[:-3]]
    for opening, unit in product(openings, filter(None, units)):
        short, long = (opening + unit * (size // len(unit)) for size in (2**13, 2**17))
        if taken_s(long) > 0.1:
            long_s, short_s = (min(taken_s(text) for _ in range(3)) for text in (long, short))
            assert long_s < 100 * short_s, (opening, unit)


@pytest.mark.parametrize("name", NOTATION)
def test_many_arguments_are_read_in_proportion(name: str) -> None:
    """Ten times the arguments take less than forty times as long, and not a hundred times."""
    dialect = DIALECTS[name]

    def taken_s(count: int) -> float:
        call = ToolCall("call_0", "f", {f"key{i}": 1 for i in range(count)})
        text = dialect.write("", (call,))
        began = time.process_time()
        assert dialect.parse(text, 0).tool_calls[0].arguments == call.arguments
        return time.process_time() - began

    assert min(taken_s(3000) for _ in range(3)) < 40 * min(taken_s(300) for _ in range(3))


def test_an_argument_written_twice_is_refused_in_proportion() -> None:
    def taken_s(count: int) -> float:
        keys = ", ".join(f'"key{i}": 1' for i in range(count))
        text = V31.replace("{}", f'{{{keys}, "key{count - 1}": 2}}')
        began = time.process_time()
        assert "twice" in DIALECTS["deepseek_v31"].parse(text, 0).malformed[0]
        return time.process_time() - began

    assert min(taken_s(15_000) for _ in range(3)) < 40 * min(taken_s(1_500) for _ in range(3))


@pytest.mark.parametrize("name", ["mistral", "mistral_v11", "mistral_v3", "gemma4"])
def test_thinking_stands_between_marks_of_the_family(name: str) -> None:
    dialect = DIALECTS[name]
    marks = ("<|channel>thought\n", "<channel|>") if name == "gemma4" else ("[THINK]", "[/THINK]")
    call = dialect.write("", (F,))
    for said in (f"{marks[0]}I may {call}", f"Hm. {marks[0]}I may {call}"):
        assert not dialect.parse(said, 0).tool_calls
        assert not dialect.parse(f"{said}{marks[1]}", 0).tool_calls
        assert plain(dialect.parse(f"{said}{marks[1]}{call}", 0).tool_calls) == plain((F,))


def test_a_channel_of_thinking_ends_at_its_own_mark() -> None:
    """A model may name another family's mark in what it thinks."""
    call = GEMMA4.write("", (F,))
    thought = f"<|channel>thought\nnot </think> {call}\n<channel|>"
    assert not GEMMA4.parse(thought, 0).tool_calls
    assert plain(GEMMA4.parse(thought + call, 0).tool_calls) == plain((F,))


SCHEMA = {
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "flag": {"type": ["boolean", "null"]},
        "rows": {"anyOf": [{"type": "array"}, {"type": "null"}]},
        "kind": {"enum": ["1", "2"]},
        "either": {"type": ["string", "integer"]},
        "free": {},
        "limit": {"type": "integer", "nullable": True},
        "place": {"$ref": "#/$defs/Place"},
        "maybe": {"anyOf": [{"$ref": "#/definitions/a~1b%20c"}, {"type": "null"}]},
        "whole": {"allOf": [{"$ref": "#/$defs/Place"}]},
        "colour": {"anyOf": [{"$ref": "#/$defs/Colour"}, {"type": "null"}]},
        "circle": {"$ref": "#/$defs/Circle"},
        "nowhere": {"anyOf": [{"$ref": "#/$defs/Gone"}, {"$ref": "other.json"}, {"$ref": 5}]},
        "digit": {"enum": [1, 2]},
        "only": {"const": 3},
        "word": {"const": "3"},
    },
    "$defs": {
        "Place": {"type": "object", "properties": {"x": {"type": "integer"}}},
        "Colour": {"type": "string", "enum": ["none", "red"]},
        "Circle": {"anyOf": [{"$ref": "#/$defs/Circle"}, {"type": "integer"}] * 40},
    },
    "definitions": {"a/b c": {"type": "array"}},
}


@pytest.mark.parametrize(
    ("key", "given_value", "typed"),
    [
        ("text", "5", "5"),
        ("text", 5, 5),
        ("count", "5", 5),
        ("count", "5.5", "5.5"),
        ("count", "five", "five"),
        ("count", "true", "true"),
        ("count", "9" * 400, "9" * 400),
        ("flag", "True", True),
        ("flag", "None", None),
        ("rows", "[1, 2]", [1, 2]),
        ("rows", "[" * 5_000, "[" * 5_000),
        ("kind", "1", "1"),
        ("either", "5", "5"),
        ("free", "5", "5"),
        ("unknown", "5", "5"),
        ("limit", "null", None),
        ("limit", "5", 5),
        ("place", '{"x": 1}', {"x": 1}),
        ("place", "[1]", "[1]"),
        ("maybe", "[1]", [1]),
        ("maybe", "null", None),
        ("whole", '{"x": 1}', {"x": 1}),
        ("colour", "none", "none"),
        ("circle", "5", 5),
        ("nowhere", "5", "5"),
        ("digit", "1", 1),
        ("only", "3", 3),
        ("word", "3", "3"),
    ],
)
def test_arguments_get_the_types_of_the_schema(
    key: str, given_value: object, typed: object
) -> None:
    read = type_arguments({key: given_value}, SCHEMA)[key]
    assert read == typed
    assert type(read) is type(typed)


def test_a_schema_that_stands_elsewhere_types_as_well() -> None:
    schema = {"$ref": "#/definitions/A", "definitions": {"A": SCHEMA}}
    assert type_arguments({"count": "5", "limit": "x"}, schema) == {"count": 5, "limit": "x"}
    assert type_arguments({"a": "5"}, {"$ref": "#"}) == {"a": "5"}


def test_a_schema_that_is_none_types_nothing() -> None:
    assert type_arguments({"a": "5"}, None) == {"a": "5"}
    assert type_arguments({"a": "5"}, {"properties": {"a": [1]}}) == {"a": "5"}


def test_thoughts_are_written_apart() -> None:
    thought = "<think>\nso\n</think>\n\n"
    assert GEMMA4.write(f"{thought}42", ()) == "<|channel>thought\nso\n<channel|>42"
    assert HARMONY.write(f"{thought}42", ()) == (
        "<|channel|>analysis<|message|>so<|end|><|start|>assistant<|channel|>final<|message|>42"
    )
