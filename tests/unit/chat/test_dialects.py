"""Reading calls out of text. Mutants these tests were seen to kill: the closing tag searched for
instead of read after the JSON; thinking searched for calls; the surrogate and NaN check left out;
`RecursionError` not caught; the tag looked for inside a call's arguments."""

import re
import sys
import time
from collections.abc import Generator
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

import agentrl
from agentrl.authoring.tool_env import ToolEnv
from agentrl.chat.call_json import CALLS_MAX
from agentrl.chat.conformance import check_template
from agentrl.chat.dialect import ToolCallDialect
from agentrl.chat.dialects import DIALECTS, find_dialect, load_dialects
from agentrl.chat.dialects.hermes import HERMES
from agentrl.chat.dialects.llama3 import LLAMA3
from agentrl.chat.format import ChatFormat
from agentrl.chat.thinking import find_spoken
from agentrl.chat.tokenizer import train_tokenizer
from agentrl.engine.scripted import ScriptedEngine
from agentrl.env import Action
from agentrl.errors import ConfigError
from agentrl.message import ToolCall
from agentrl.rollout.episode import EpisodeLimits, EpisodeRunner
from agentrl.task import Task
from agentrl.trajectory import Failed, Tree
from tests.support.doubles import doubles
from tests.support.pages import blocks
from tests.support.watchdog import watched

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
        ('{"name": "Ann", "age": 3}', Action('{"name": "Ann", "age": 3}')),
        (
            '{"name": "Ann", "name": "Bo", "age": 3}',
            Action('{"name": "Ann", "name": "Bo", "age": 3}'),
        ),
        ('{"type": "circle", "radius": 2} it is', Action('{"type": "circle", "radius": 2} it is')),
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
    ('{"name": 1, "arguments": {}}', '"name" is missing or not text'),
    ('{"name": "f"}', '"arguments" is missing'),
    ('{"name": "f", "arguments": [1]}', '"arguments" must be an object, not a list'),
    ('{"name": "f", "arguments": "{}"}', '"arguments" must be an object, not a text'),
    ('{"name": "f", "arguments": null}', '"arguments" must be an object, not null'),
    ("[]", "a call must be a JSON object, not a list"),
    ('{"name": "f", "arguments": {"a": NaN}}', "not finite"),
    ('{"name": "f", "arguments": {"a": 1e999}}', "not finite"),
    ('{"name": "f", "arguments": {"a": "\\ud800"}}', "not valid Unicode"),
    ('{"name": "f", "arguments": {"a": ' + "9" * 5000 + "}}", "more than 308 digits"),
    ('{"name": "f", "arguments": ' + "[" * 100_000, "nested more than 64 deep"),
    ('{"name": "f", "arguments": {"a": ' + "[" * 700 + "]" * 700 + "}}", "nested more than 64"),
    ('{"name": "f", "arguments": {"a": [' + "0," * 10_000 + "0]}}", "more than 10000 values"),
    ('{"name": "f", "arguments": {"a": "' + "b" * 1_000_000 + '"}}', "the limit is 262144"),
    ('{"name": "f", "arguments": {"a": "\\u0000"}}', "NUL"),
    ('{"name": "f", "arguments": {"a": [{"b": 1, "b": 2}]}}', "the key 'b' twice"),
    ('{"name": "f", "name": "g", "arguments": {}}', "the key 'name' twice"),
    ('{"name": "' + "f" * 257 + '", "arguments": {}}', "257 characters, but the limit is 256"),
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
    assert "more than one call" in action.malformed[0]
    assert action.text == " x"
    action = LLAMA3.parse(f"{LLAMA_F} and so on", 0)
    assert action.tool_calls == (F,)
    assert "there is text after it" in action.malformed[0]


@pytest.fixture
def bracket(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Generator[PreTrainedTokenizerFast]:
    """Put the dialect of docs/chat.md where it can be imported, and return any tokenizer."""
    (source,) = [b for b in blocks(root / "docs" / "chat.md", root) if "BRACKET =" in b.text]
    (tmp_path / "bracket_dialect.py").write_text(source.text)
    monkeypatch.syspath_prepend(tmp_path)
    yield train_tokenizer(["a"], vocab_size=300, folder=tmp_path / "tokenizer")
    sys.modules.pop("bracket_dialect", None)
    load_dialects.cache_clear()


def test_a_dialect_of_ones_own_is_named_in_the_config(bracket: PreTrainedTokenizerFast) -> None:
    chat = ChatFormat(bracket, dialect="bracket_dialect:BRACKET")
    action = Action("So: ", (F,))
    assert chat.parse(chat.write(action)) == action
    assert chat.parse(bracket.encode("[call]" + "[" * 700)).malformed
    failed = {row.name for row in check_template(bracket, dialect="bracket_dialect:BRACKET").rows}
    assert "a broken call becomes an answer" in failed


@pytest.mark.parametrize(
    ("body", "wrong"),
    [
        ("return {}[text]", r"'bracket' cannot parse a turn: KeyError: 'Hi'; at .*, in parse"),
        ("return text", "'bracket' cannot parse a turn: TypeError: its parse returned a str"),
    ],
)
async def test_a_dialect_that_cannot_read_a_turn_fails_the_trajectory(
    bracket: PreTrainedTokenizerFast, tmp_path: Path, body: str, wrong: str
) -> None:
    """Not the run; and nothing is scored, since the turn may have been right."""
    module = tmp_path / "bracket_dialect.py"
    module.write_text(module.read_text().replace("    if begin < 0:", f"    {body}\n    if True:"))
    chat = ChatFormat(bracket, dialect="bracket_dialect:BRACKET")
    episode = EpisodeRunner(
        env=ToolEnv(tasks=doubles, tools=[], reward=agentrl.rewards.exact_answer),
        engine=ScriptedEngine(lambda request: bracket.encode("Hi")),
        chat=chat,
        tree=Tree(Task(prompt="2", answer="4")),
        sample=0,
        seed=1,
        limits=EpisodeLimits(),
    )
    outcome = (await episode.run()).outcome
    assert isinstance(outcome, Failed)
    assert outcome.kind == "env"
    assert re.search(wrong, outcome.error)
    rows = check_template(bracket, dialect="bracket_dialect:BRACKET").rows
    assert any("'bracket' cannot parse a turn" in row.why for row in rows)


def test_a_distribution_offers_dialects(bracket: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    """By name, and to `auto` where a template writes as one of them reads."""
    info = tmp_path / "bracket-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bracket\nVersion: 1.0\n")
    points = info / "entry_points.txt"
    points.write_text("[agentrl.dialects]\nbracket = bracket_dialect:BRACKET\n")
    load_dialects.cache_clear()
    assert [*load_dialects()] == [*DIALECTS, "bracket"]
    assert ChatFormat(bracket, dialect="bracket").dialect.name == "bracket"
    file = tmp_path / "bracket.jinja"
    file.write_text(
        HERMES.template.replace('<tool_call>\\n{"name"', '[call]{"name"')
        .replace('}\\n</tool_call>"', '}"')
        .replace('"arguments"', '"args"')
    )
    assert ChatFormat(bracket, template=str(file)).dialect.name == "bracket"
    with pytest.raises(ConfigError, match="'bracket' has no template of its own"):
        ChatFormat(bracket, template="bracket")
    points.write_text("[agentrl.dialects]\nbracket = bracket_dialect:OPEN\n")
    load_dialects.cache_clear()
    with pytest.raises(ConfigError, match=r"bracket_dialect:OPEN.* is a str; name an agentrl"):
        find_dialect("bracket")
    points.write_text("[agentrl.dialects]\nbracket = no_such_module:X\n")
    load_dialects.cache_clear()
    with pytest.raises(ConfigError, match=r"dialect 'bracket' of bracket .* cannot be imported"):
        find_dialect("bracket")


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("herms", "did you mean 'hermes'"),
        ("mine", "the dialects are hermes, llama3, .*, or write a dialect of your own"),
        ("no_such_module:X", "no_such_module"),
        ("agentrl.chat.dialects.hermes:HERMS", "did you mean 'HERMES'"),
        (
            "agentrl.chat.dialects.hermes:OPEN",
            "is a str; name an agentrl.chat.dialect.ToolCallDialect",
        ),
    ],
)
def test_a_dialect_that_is_none_is_refused_with_the_way_out(name: str, wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong):
        find_dialect(name)


@watched
def test_a_turn_has_so_many_calls() -> None:
    """The rest of the turn is not searched: each broken call scans to its end."""
    for text in (HERMES_F * 100, "<tool_call>" * 100, "<tool_call>{" * 100):
        action = HERMES.parse(text, 0)
        assert len(action.tool_calls) + len(action.malformed) == CALLS_MAX + 1
        assert "at most 64 calls" in action.malformed[-1]
        assert action.text == ""
    action = LLAMA3.parse(";".join([LLAMA_F] * 100), 0)
    assert (len(action.tool_calls), len(action.malformed)) == (CALLS_MAX, 1)
    assert not HERMES.parse(HERMES_F * CALLS_MAX, 0).malformed
    assert not LLAMA3.parse(";".join([LLAMA_F] * CALLS_MAX), 0).malformed


GROWING = [
    *("<tool_call>", "<tool_call>{", '<tool_call>["', "<tool_call>[1,", "</tool_call>", HERMES_F),
    *("<think>", "</think>", "<think></think>", "<think>x</think><tool_call>", " ", "\n", "[", '"'),
    *('{"name":', "\\", LLAMA_F, f"{LLAMA_F};", "<|python_tag|>", "<tool_call>" + " " * 50, "1,"),
    *('<tool_call>{"name": "f", "arguments": {"a": [', "<tool_call></tool_call>", "a", "\ud800"),
]
OPENINGS = ["", "<tool_call>", "<think>", "<|python_tag|>", '{"name": ["']


@pytest.mark.parametrize("dialect", [HERMES, LLAMA3], ids=["hermes", "llama3"])
def test_reading_takes_time_in_proportion(dialect: ToolCallDialect) -> None:
    """Sixteen times the text takes less than a hundred times as long, and not 256 times. The
    fastest of three readings counts: another process may hold the processor."""

    def taken_s(text: str) -> float:
        began = time.process_time()
        dialect.parse(text, 0)
        return time.process_time() - began

    for opening, unit in product(OPENINGS, GROWING):
        short, long = (opening + unit * (size // len(unit)) for size in (2**13, 2**17))
        if taken_s(long) > 0.1:
            long_s, short_s = (min(taken_s(text) for _ in range(3)) for text in (long, short))
            assert long_s < 100 * short_s, (opening, unit)


fragments = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "<think>", "</think>", "<|python_tag|>", "\n", ";", "x"),
        *('{"name": "f"', ', "arguments": {}', ', "parameters": {}', "}", "{", "[", '"', "\\"),
        *("NaN", "-", "1e9", "\ud800", "\x00", '{"type"', HERMES_F, LLAMA_F),
    ]
)


@pytest.mark.parametrize("dialect", [HERMES, LLAMA3], ids=["hermes", "llama3"])
@given(text=st.lists(fragments, max_size=12).map("".join) | st.text(), start=st.integers(0, 20))
def test_any_text_can_be_read(dialect: ToolCallDialect, text: str, start: int) -> None:
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
