"""Messages to tokens and back. Mutants these tests were seen to kill: the cut before a sampled turn
dropped from `TextTokenizer`; control tokens left whole in content; `ended` ignored; glue left out;
the stop token kept by `parse`; thinking searched for calls; assistant text not neutral in
`write`."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from agentrl.chat.conformance import check_template
from agentrl.chat.dialects import DIALECTS, TEMPLATES
from agentrl.chat.format import ChatFormat
from agentrl.chat.renderer import TokenSegment
from agentrl.chat.tokenizer import conversation_text, train_tokenizer
from agentrl.env import Action, ToolSchema, call, say
from agentrl.errors import ConfigError
from agentrl.message import Image, Message, ToolCall

SUM: ToolSchema = {
    "type": "function",
    "function": {"name": "sum", "description": "Add.", "parameters": {"type": "object"}},
}
ASK = Message("user", "What is 12 + 30?")
SYSTEM = Message("system", "Be brief.")
CALL = call("sum", of=[12, 30])
ANSWER = Message("tool", "42", tool_call_id="call_0", name="sum")
CONVERSATION = (SYSTEM, ASK, CALL.message, ANSWER, Message("assistant", "It is 42."))


@pytest.fixture(scope="module", params=list(TEMPLATES))
def chat(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ChatFormat:
    return ChatFormat(tokenizer_of(request.param, tmp_path_factory.mktemp(request.param)))


@pytest.fixture(scope="module")
def hermes(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerFast:
    return tokenizer_of("hermes", tmp_path_factory.mktemp("hermes"))


def tokenizer_of(name: str, folder: Path) -> PreTrainedTokenizerFast:
    """Train on one conversation, so that all its constant text is few tokens."""
    text = conversation_text(CONVERSATION, (SUM,), template=name)
    return train_tokenizer([text], vocab_size=600, folder=folder, template=name)


def tokens(segments: Sequence[TokenSegment]) -> tuple[int, ...]:
    return tuple(token for segment in segments for token in segment.token_ids)


def text_of(chat: ChatFormat, token_ids: Sequence[int]) -> str:
    return cast("str", chat.template.tokenizer.decode(list(token_ids)))


def shown(chat: ChatFormat, token_ids: Sequence[int]) -> list[str]:
    return [text_of(chat, [token]) for token in token_ids]


def variant(folder: Path, old: str, new: str) -> str:
    """Return the path of the Hermes template with one thing changed."""
    source = DIALECTS["hermes"].template
    assert old in source
    path = folder / "variant.jinja"
    path.write_text(source.replace(old, new), encoding="utf-8")
    return str(path)


def test_golden_hermes(hermes: PreTrainedTokenizerFast) -> None:
    chat = ChatFormat(hermes)
    opening = chat.opening((ASK,))
    assert [segment.source for segment in opening] == ["prompt"]
    assert shown(chat, tokens(opening)) == [
        *("<|im_start|>", "user\nWhat is ", "1", "2", " + ", "3", "0", "?", "<|im_end|>", "\n"),
        *("<|im_start|>", "assistant\n"),
    ]
    assert shown(chat, chat.write(CALL)) == [
        *('<tool_call>\n{"name": "sum", "arguments": {"of": [', "1", "2", ", ", "3", "0"),
        *("]}}\n</tool_call>", "<|im_end|>"),
    ]
    ended = chat.reply((ANSWER,), ended=True)
    assert [(segment.source, shown(chat, segment.token_ids)) for segment in ended] == [
        ("template", ["\n"]),
        (
            "tool",
            [
                *("<|im_start|>", "user\n<tool_response>\n", "4", "2", "\n</tool_response>"),
                *("<|im_end|>", "\n"),
            ],
        ),
        ("template", ["<|im_start|>", "assistant\n"]),
    ]
    cut_short = chat.reply((ANSWER,), ended=False)
    assert shown(chat, cut_short[0].token_ids) == ["<|im_end|>", "\n"]
    assert cut_short[1:] == ended[1:]


def test_contents_in_parts_are_told_as_texts(hermes: PreTrainedTokenizerFast) -> None:
    """vLLM's server hands every content to a template that reads parts as a list of them."""
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    texts: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "1 + 1?"},
        {"role": "assistant", "content": "Let me see.", "tool_calls": [call]},
        {"role": "tool", "content": "2"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]
    parts = [m | {"content": [{"type": "text", "text": m["content"]}]} for m in texts]
    silent = [*texts[:-1], texts[-1] | {"content": None}]
    template: Any = hermes.apply_chat_template
    first, *others = (template(said, tokenize=False) for said in (texts, parts, silent))
    assert others == [first, first]


def test_golden_llama3(tmp_path: Path) -> None:
    chat = ChatFormat(tokenizer_of("llama3", tmp_path))
    header = ("<|start_header_id|>", "user", "<|end_header_id|>")
    assistant = ("<|start_header_id|>", "assistant", "<|end_header_id|>", "\n\n")
    assert shown(chat, tokens(chat.opening((ASK,)))) == [
        *("<|begin_of_text|>", *header, "\n\nWhat is ", "1", "2", " + ", "3", "0", "?"),
        *("<|eot_id|>", *assistant),
    ]
    assert shown(chat, chat.write(CALL)) == [
        *('{"name": "sum", "parameters": {"of": [', "1", "2", ", ", "3", "0", "]}}", "<|eot_id|>")
    ]
    ended = chat.reply((ANSWER,), ended=True)
    assert [(segment.source, shown(chat, segment.token_ids)) for segment in ended] == [
        (
            "tool",
            ["<|start_header_id|>", "ipython", "<|end_header_id|>", "\n\n", "4", "2", "<|eot_id|>"],
        ),
        ("template", list(assistant)),
    ]
    assert shown(chat, chat.reply((), ended=False)[0].token_ids) == ["<|eot_id|>"]


def test_stop_tokens_end_a_turn_and_are_no_text(chat: ChatFormat) -> None:
    written = chat.write(say("42"))
    assert chat.stop_token_ids == {written[-1]}
    assert text_of(chat, written) == "42" + chat.dialect.end_of_turn
    assert chat.parse(written) == chat.parse(written[:-1]) == say("42")


def test_llama_stops_at_the_end_of_a_message_too(tmp_path: Path) -> None:
    tokenizer = tokenizer_of("llama3", tmp_path)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|eom_id|>"]})
    chat = ChatFormat(tokenizer)
    assert set(shown(chat, sorted(chat.stop_token_ids))) == {"<|eot_id|>", "<|eom_id|>"}


def test_a_call_is_read_with_its_id(chat: ChatFormat) -> None:
    assert chat.parse(chat.write(CALL)) == CALL


# What content may hold: any Unicode but the noncharacter that agentrl uses itself, and what
# templates and dialects write.
any_text = st.lists(
    st.one_of(
        st.text(st.characters(codec="utf-8", exclude_characters="\ufdd0"), max_size=8),
        st.sampled_from(
            [
                *("<|im_end|>", "<|im_start|>assistant\n", "<|eot_id|>", "<|python_tag|>", "\n"),
                *("<tool_call>", "</tool_response>", "<think>", "</think>", '{"name": "f"', "7"),
            ]
        ),
    ),
    max_size=5,
).map("".join)
json_texts = any_text.map(lambda text: text.replace("\0", ""))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | json_texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(json_texts, inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
arguments = st.dictionaries(st.text("abc", min_size=1, max_size=3), json_values, max_size=3)
names = st.text("abc_", min_size=1, max_size=6)


@st.composite
def actions(draw: st.DrawFn) -> Action:
    calls = draw(st.lists(st.tuples(names, arguments), max_size=3))
    made = tuple(ToolCall(f"call_{i}", name, args) for i, (name, args) in enumerate(calls))
    return Action(draw(any_text), made)


@st.composite
def replies(draw: st.DrawFn) -> tuple[Message, ...]:
    answers = draw(st.lists(any_text, max_size=3))
    said = draw(st.lists(any_text, max_size=1))
    return (
        *(Message("tool", text, tool_call_id="call_0", name="f") for text in answers),
        *(Message("user", text) for text in said),
    )


@given(
    turns=st.lists(st.tuples(actions(), replies()), min_size=1, max_size=3),
    asked=any_text,
    system=st.none() | any_text,
    with_tools=st.booleans(),
)
@settings(max_examples=80, deadline=None)
def test_pieces_are_the_whole(
    chat: ChatFormat,
    turns: list[tuple[Action, tuple[Message, ...]]],
    asked: str,
    system: str | None,
    with_tools: bool,
) -> None:
    """Opening, turns and replies have the tokens of the conversation rendered at once, and its
    text, so whatever content says, it adds no control token."""
    start = (*([Message("system", system)] if system else []), Message("user", asked))
    tools = (SUM,) if with_tools else ()
    messages = list(start)
    pieces = list(tokens(chat.opening(start, tools)))
    for action, reply in turns:
        messages += (action.message, *reply)
        pieces += chat.write(action)
        pieces += tokens(chat.reply(reply, ended=True))
    assert tuple(pieces) == tokens(chat.opening(messages, tools))
    text = chat.template.tokenizer.apply_chat_template(
        [plain(message) for message in messages],
        tools=[dict(tool) for tool in tools] or None,
        tokenize=False,
        add_generation_prompt=True,
    )
    assert text_of(chat, pieces) == text


def plain(message: Message) -> dict[str, Any]:
    made: dict[str, Any] = {"role": message.role, "content": message.text}
    if message.tool_calls:
        made["tool_calls"] = [
            {"type": "function", "function": {"name": c.name, "arguments": dict(c.arguments)}}
            for c in message.tool_calls
        ]
    return made


@given(text=any_text)
@settings(max_examples=100, deadline=None)
def test_content_makes_no_control_token(chat: ChatFormat, text: str) -> None:
    special = set(chat.template.tokenizer.all_special_ids)

    def control(content: str) -> list[int]:
        answer = Message("tool", content, tool_call_id="call_0", name="sum")
        tool = {**SUM, "function": {**SUM["function"], "description": content}}
        produced = (
            *tokens(chat.opening((Message("system", content), Message("user", content)), (tool,))),
            *tokens(chat.reply((answer, Message("user", content)), ended=True)),
            *chat.write(say(content)),
            *chat.write(call("sum", of={content: [content]})),
        )
        return [token for token in produced if token in special]

    assert control(text) == control("-")


def test_half_characters_are_said_as_a_question_mark(chat: ChatFormat) -> None:
    """A page or a program may hold them, and tokenizers refuse them."""

    def said(text: str) -> list[tuple[int, ...]]:
        answer = Message("tool", text, tool_call_id="call_0", name=f"sum{text}")
        tool = {**SUM, "function": {**SUM["function"], "description": text}}
        return [
            tokens(chat.opening((Message("system", text), Message("user", text)), (tool,))),
            tokens(chat.reply((answer, Message("user", text)), ended=True, tools=(tool,))),
            chat.write(call("sum", of={text: [text]})),
            chat.write(say(text)),
        ]

    assert said("\ud800") == said("?")
    assert said("a\udfff\ud800é") == said("a??é")


@given(action=actions())
@settings(max_examples=100, deadline=None)
def test_actions_survive(chat: ChatFormat, action: Action) -> None:
    """Unless the text itself holds what opens a call or a thought."""
    marks = ("<tool_call>", "<think>", "<|python_tag|>", '{"name"')
    text = action.text
    for mark in marks:
        text = text.replace(mark, "")
    if any(mark in text for mark in marks):
        text = ""
    action = Action(text, action.tool_calls)
    assert chat.parse(chat.write(action)) == action


@given(noise=st.data())
@settings(max_examples=150, deadline=None)
def test_any_tokens_can_be_read(chat: ChatFormat, noise: st.DataObject) -> None:
    call_ids = chat.write(CALL)
    ids = st.integers(0, len(chat.template.tokenizer) + 50) | st.sampled_from(call_ids)
    token_ids = noise.draw(st.lists(ids, max_size=30) | st.permutations(call_ids))
    action = chat.parse(token_ids)
    for made in action.tool_calls:
        assert made.name
        json.dumps(dict(made.arguments), allow_nan=False).encode()
    assert len({made.id for made in action.tool_calls}) == len(action.tool_calls)


def test_absurd_ids_are_no_text(chat: ChatFormat) -> None:
    assert chat.parse([-1, 2**40, *chat.write(say("42"))]) == say("42")
    assert chat.parse([]) == say("")


def test_malformed_actions_cannot_be_demonstrated(chat: ChatFormat) -> None:
    with pytest.raises(ValueError, match="1 malformed"):
        chat.write(Action("", malformed=("broken",)))


def test_several_answers_share_a_turn_in_hermes(hermes: PreTrainedTokenizerFast) -> None:
    chat = ChatFormat(hermes)
    answers = [Message("tool", str(i), tool_call_id=f"call_{i}", name="sum") for i in range(2)]
    segment = chat.reply(answers, ended=True)[1]
    assert text_of(chat, segment.token_ids) == (
        "<|im_start|>user\n<tool_response>\n0\n</tool_response>\n"
        "<tool_response>\n1\n</tool_response><|im_end|>\n"
    )


def test_an_answer_to_no_call_is_rendered(chat: ChatFormat) -> None:
    """As an environment answers a malformed call: no call had this id."""
    answer = Message("tool", "Malformed", tool_call_id="malformed_0", name="")
    assert "Malformed" in text_of(chat, tokens(chat.reply((answer,), ended=True)))


def test_changed_tools_are_announced(chat: ChatFormat) -> None:
    segments = chat.reply((ANSWER,), ended=True, tools=(SUM,))
    text = text_of(chat, tokens(segments))
    assert text.index("42") < text.index("From here on") < text.index('"description": "Add."')
    assert [s.source for s in segments if s.source != "template"] == ["tool"]


@pytest.mark.parametrize(
    ("opens", "closes"),
    [
        ("<think>", "</think>"),
        ("[THINK]", "[/THINK]"),
        ("<seed:think>", "</seed:think>"),
        ("<|START_THINKING|>", "<|END_THINKING|>"),
    ],
)
def test_a_turn_that_begins_inside_a_thought(
    hermes: PreTrainedTokenizerFast, tmp_path: Path, opens: str, closes: str
) -> None:
    path = variant(tmp_path, '"<|im_start|>assistant\\n', f'"<|im_start|>assistant\\n{opens}\\n')
    chat = ChatFormat(hermes, template=path)
    assert chat.begins_thinking
    wanted = chat.dialect.write("", CALL.tool_calls)
    assert chat.parse(chat.encode(f"shall I {wanted}")) == say(f"shall I {wanted}")
    acted = chat.parse(chat.encode(f"I shall\n{closes}\n\n{wanted}"))
    assert acted == Action(f"I shall\n{closes}\n", CALL.tool_calls)
    assert {row.name: row.ok for row in check_template(hermes, template=path).rows}[
        "actions survive write and parse"
    ]


@dataclass(frozen=True)
class Sizes:
    """As many tokens as an image has bytes."""

    token_id: int

    def tokens(self, image: Image) -> int:
        return len(image.data)


def test_images_are_expanded(hermes: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    picture = Message("user", ("see ", Image(b"1"), Image(b"2"), "<|image|>"))
    with pytest.raises(ConfigError, match="supports no images"):
        ChatFormat(hermes).opening((picture,))
    tokenizer = tokenizer_of("hermes", tmp_path / "with_image")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|image|>"]})
    path = tmp_path / "images.jinja"
    path.write_text(
        "{%- macro show(content) -%}{%- if content is string -%}{{ content }}{%- else -%}"
        "{%- for part in content -%}{{ part.text or '<|image|>' }}{%- endfor -%}{%- endif -%}"
        "{%- endmacro -%}"
        "{%- for m in messages -%}<|im_start|>{{ m.role + '\n' + show(m.content) }}<|im_end|>\n"
        "{% endfor -%}{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}"
    )
    with pytest.raises(ConfigError, match="has no image processor"):
        ChatFormat(tokenizer, template=str(path)).opening((picture,))
    placeholder = cast("int", tokenizer.convert_tokens_to_ids("<|image|>"))
    chat = ChatFormat(tokenizer, template=str(path), images=Sizes(placeholder))
    with pytest.raises(ConfigError, match="text between two images"):
        chat.opening((picture,))
    picture = Message("user", ("see ", Image(b"1"), "and", Image(b"333"), "<|image|>"))
    (segment,) = chat.opening((picture,))
    assert segment.images == picture.images
    runs = [segment.token_ids[start:stop] for start, stop in segment.image_spans]
    assert runs == [(placeholder,), (placeholder,) * 3]
    assert segment.token_ids.count(placeholder) == 4  # the one in the text stays text
    reply = chat.reply((Message("tool", (Image(b"22"),), name="sum"),), ended=True)
    assert [segment.images for segment in reply] == [(), (Image(b"22"),), ()]
    start, stop = reply[1].image_spans[0]
    assert reply[1].token_ids[start:stop] == (placeholder, placeholder)
    assert reply[1].token_ids.count(placeholder) == 2


def test_answers_are_rendered_after_a_call_where_a_template_looks_back(
    hermes: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    """A template that refuses a tool message without a call before it, and names the tool."""
    path = variant(
        tmp_path,
        '"\\n<tool_response>\\n"',
        '"\\n<tool_response>" + messages[loop.index0 - 1].tool_calls[0].function.name + "\\n"',
    )
    chat = ChatFormat(hermes, template=path)
    segment = chat.reply((ANSWER,), ended=True)[1]
    assert "<tool_response>sum\n42\n" in text_of(chat, segment.token_ids)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('{{- "<|im_start|>system\\n" + system }}', "{{- messages | length }}", "the start"),
        ('"\\n<tool_response>\\n"', '"\\n<tool_response>" ~ loop.index', "renders a tool message"),
        ('message.role + "\\n"', 'message.role ~ loop.index ~ "\\n"', "a user message"),
        ("{%- if add_generation_prompt %}", "{%- if false %}", "add_generation_prompt"),
        ("<|im_end|>", "<|end|>", "no special token|holds no"),
        ('assistant\\n" + said', 'assistant\\n" + "x"', "0 times"),
    ],
)  # fmt: skip
def test_templates_that_cannot_be_appended_to_are_refused(
    hermes: PreTrainedTokenizerFast, tmp_path: Path, old: str, new: str, problem: str
) -> None:
    path = variant(tmp_path, old, new)
    with pytest.raises(ConfigError, match=problem) as refused:
        ChatFormat(hermes, template=path)
    assert "variant.jinja" in str(refused.value)
    assert "policy.template" in str(refused.value)


@pytest.mark.parametrize(
    ("broken", "problem"),
    [
        ("{{ 1 / 0 }}", "ZeroDivisionError: division by zero"),
        ("{% for i in range(10**9) %}{% endfor %}", "OverflowError: Range too big"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{{ 'x' * 10**15 }}", "MemoryError;"),
        ("{{ 'a'.encode('no') }}", "LookupError: unknown encoding"),
        ("\n{{ 'a' | no }}", "line 2: No filter named 'no'"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
    ],
)
def test_whatever_a_template_raises_is_its_fault(
    hermes: PreTrainedTokenizerFast, tmp_path: Path, broken: str, problem: str
) -> None:
    path = tmp_path / "broken.jinja"
    path.write_text(broken, encoding="utf-8")
    with pytest.raises(ConfigError, match=f"broken.jinja cannot render .*{problem}"):
        ChatFormat(hermes, template=str(path))
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"broken.jinja'.* cannot be read as UTF-8 text"):
        ChatFormat(hermes, template=str(path))


def test_tools_are_refused_where_a_template_hides_them(
    hermes: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    chat = ChatFormat(hermes, template=variant(tmp_path, "tool | tojson", "'-'"))
    chat.opening((ASK,))
    with pytest.raises(ConfigError, match="does not show the tools"):
        chat.opening((ASK,), (SUM,))


def test_names_and_paths_are_checked(hermes: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="neither a shipped template"):
        ChatFormat(hermes, template="hermess")
    with pytest.raises(ConfigError, match="did you mean 'hermes'"):
        ChatFormat(hermes, dialect="hermess")
    with pytest.raises(ConfigError, match="did you mean 'hermes'"):
        check_template(hermes, dialect="hermess")
    with pytest.raises(ConfigError, match="cannot render"):
        ChatFormat(hermes).opening(())
    bare = tokenizer_of("hermes", tmp_path)
    bare.chat_template = None
    with pytest.raises(ConfigError, match="has no chat template"):
        ChatFormat(bare)
    assert ChatFormat(bare, template="hermes").dialect.name == "hermes"


def test_auto_finds_what_reads_the_templates_calls(
    hermes: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"no dialect can parse.*policy\.dialect: module:NAME"):
        ChatFormat(hermes, template=variant(tmp_path, '"arguments": \' +', '"args": \' +'))
    assert ChatFormat(tokenizer_of("llama3", tmp_path)).dialect.name == "llama3"


UNKNOWN = {
    # As Kimi-K2 does: a call is its id and its arguments, and its name is in the id.
    "names calls by their ids": (
        """'<tool_call>\\n{"name": ' + call.function.name | tojson""",
        "'<|tool_call_begin|>' + call['id']",
        r"renders a tool call as .*<\|tool_call_begin\|>call_0.*which no dialect can parse",
    ),
    # As LFM2 does: the calls of earlier turns are left out.
    "leaves calls out": (
        "message.tool_calls",
        "[]",
        "shows tools but omits the calls of earlier turns",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", list(UNKNOWN))
def test_a_template_of_an_unknown_dialect_is_refused_by_name(
    hermes: PreTrainedTokenizerFast, tmp_path: Path, fault: str
) -> None:
    """Another dialect would train without a word. The dialect named by the user is used."""
    old, new, wrong = UNKNOWN[fault]
    path = variant(tmp_path, old.strip(), new.strip())
    with pytest.raises(ConfigError, match=wrong) as refused:
        ChatFormat(hermes, template=path)
    assert "variant.jinja" in str(refused.value)
    assert "policy.dialect" in str(refused.value)
    assert "module:NAME (docs/chat.md)" in str(refused.value)
    assert ChatFormat(hermes, template=path, dialect="hermes").dialect.name == "hermes"


def test_arguments_are_json_where_a_template_takes_text(
    hermes: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    """As DeepSeek's first templates do."""
    path = variant(tmp_path, "call.function.arguments | tojson", "call.function.arguments.strip()")
    chat = ChatFormat(hermes, template=path)
    assert chat.dialect.name == "hermes"
    assert chat.turns.turn(CALL.message) == chat.dialect.write("", CALL.tool_calls)


def test_a_template_that_knows_no_tools_is_used_for_words(
    hermes: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    path = tmp_path / "words.jinja"
    path.write_text(
        "{%- for m in messages -%}"
        "{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
        "{%- endfor -%}"
        "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
    )
    chat = ChatFormat(hermes, template=str(path))
    assert chat.dialect.name == "hermes"
    with pytest.raises(ConfigError, match=r"does not show the tools; set policy\.template to"):
        chat.opening((ASK,), (SUM,))
