"""Chat formats of model families: what is found in their templates, and contexts as they have them.

Mutants seen caught: the role that begins the next message taken for any end; earlier thinking kept;
a rewritten turn with two ends; the generation prompt left before one; the first dialect chosen that
reads a call.
"""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from agentrl.chat.conformance import check_template
from agentrl.chat.format import ChatFormat
from agentrl.chat.renderer import TokenSegment
from agentrl.engine.scripted import ScriptedEngine
from agentrl.env import Action, Observation, Step, say
from agentrl.errors import ConfigError
from agentrl.message import Message, ToolCall
from agentrl.policy import GenerateRequest
from agentrl.rollout.episode import EpisodeLimits, EpisodeRunner
from agentrl.task import Task
from agentrl.trajectory import Tree
from tests.support.family_templates import FAMILIES, tokenizer_of
from tests.unit.rollout.test_rollout import Echo

KNOWN_FAULTS = {
    "gpt-oss": {"shows calls and answers", "write gives the template's tokens"},
    "gemma-4": {"a reply alone has the tokens it has in place"},
}
"""The first calls once a turn and thinks where others speak; the second ends a turn of calls with
what begins their answers, whoever speaks next."""


@pytest.fixture(scope="module", params=list(FAMILIES))
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def tokenizer(family: str, tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerFast:
    return tokenizer_of(FAMILIES[family], tmp_path_factory.mktemp("family"))


def chat_of(name: str, folder: Path, **options: object) -> ChatFormat:
    return ChatFormat(tokenizer_of(FAMILIES[name], folder), **options)  # pyright: ignore[reportArgumentType]


def text_of(chat: ChatFormat, segments: tuple[TokenSegment, ...]) -> str:
    ids = [token for segment in segments for token in segment.token_ids]
    return str(chat.template.tokenizer.decode(ids, skip_special_tokens=False))


def test_a_familys_template_passes(family: str, tokenizer: PreTrainedTokenizerFast) -> None:
    verdict = check_template(tokenizer)
    failed = {row.name: row.why for row in verdict.rows if not row.ok}
    assert failed.keys() == KNOWN_FAULTS.get(family, set()), failed
    assert ChatFormat(tokenizer).dialect.name == FAMILIES[family].dialect


THOUGHT = "<think>\nso\n</think>\n\n"
CALL = ToolCall("call_0", "weather_at", {"place": "Oslo"})


def test_calls_come_back(family: str, tokenizer: PreTrainedTokenizerFast) -> None:
    """With a thought before them, and a call in the thought that is none."""
    chat = ChatFormat(tokenizer)
    fake = chat.dialect.write("", (CALL,)) if family != "gpt-oss" else "a call"
    thought = f"<think>\n{fake}\n</think>\n\n"
    if chat.begins_thinking:
        thought = thought.removeprefix("<think>\n")
    action = chat.parse(chat.encode(chat.dialect.write(f"{thought}I look.", (CALL,))))
    assert [(c.name, c.arguments) for c in action.tool_calls] == [("weather_at", CALL.arguments)]
    assert action.text == f"{thought}I look."
    assert not action.malformed


class Asks(Echo):
    """Answers each turn with a question, and ends after the third."""

    async def step(self, action: Action) -> Step:
        _, _, done, truncated, info = await super().step(action)
        return (
            Observation((Message("user", f"heard {len(action.text)}"),)),
            0.1,
            done,
            truncated,
            info,
        )


async def contexts_of(chat: ChatFormat, *turns: str, stop: int | None = None) -> list[str]:
    """Return the prompts of the turns of an episode in which the policy says these."""
    prompts: list[str] = []
    end = max(chat.stop_token_ids & {chat.write(say("x"))[-1]}) if stop is None else stop

    def reply(request: GenerateRequest) -> list[int]:
        prompts.append(text_of(chat, (TokenSegment("prompt", request.prompt),)))
        return [*chat.encode(turns[len(prompts) - 1]), end]

    episode = EpisodeRunner(
        env=Asks(),
        engine=ScriptedEngine(reply),
        chat=chat,
        tree=Tree(Task(prompt="ask", answer="4")),
        sample=0,
        seed=1,
        limits=EpisodeLimits(max_turns=len(turns), context_tokens=10_000),
    )
    leaf = await episode.run()
    assert "error" not in repr(leaf.outcome), leaf.outcome
    return prompts


async def test_a_new_context_has_no_earlier_thinking(tmp_path: Path) -> None:
    chat = chat_of("qwen3", tmp_path)
    assert chat.rewrites_turns
    prompts = await contexts_of(chat, f"{THOUGHT}One.", f"{THOUGHT}Two.", "Three.")
    assert "One." in prompts[2]
    assert "Two." in prompts[2]
    assert "<think>" not in prompts[2]
    said = (Message("assistant", f"{THOUGHT}One."), Message("assistant", f"{THOUGHT}Two."))
    asked = prompts[2].split("<|im_start|>user\n")[1:]
    users = [Message("user", part.partition("<|im_end|>")[0]) for part in asked]
    whole = chat.opening((users[0], said[0], users[1], said[1], users[2]))
    assert prompts[2] == text_of(chat, whole)


def test_a_turn_that_was_cut_off_has_one_end(tmp_path: Path) -> None:
    chat = chat_of("qwen3", tmp_path)
    first, second = (chat.encode(f"{THOUGHT}{said}.") for said in ("One", "Two"))
    asked = (Message("user", "again"),)
    parts = (
        *chat.opening((Message("user", "ask"),)),
        TokenSegment("sampled", first),
        *chat.reply(asked, ended=False),
        TokenSegment("sampled", second),
    )
    rewritten = chat.rewrite_turns(parts)
    assert rewritten is not None
    said = (Message("assistant", "One."), *asked, Message("assistant", "Two."), *asked)
    whole = text_of(chat, chat.opening((Message("user", "ask"), *said)))
    later = text_of(chat, (*rewritten, *chat.reply(asked, ended=True)))
    assert later == whole


def test_the_dialect_that_writes_as_the_template_is_found(tmp_path: Path) -> None:
    """GLM 4.7 writes without line breaks, and both dialects read either."""
    tokenizer = tokenizer_of(FAMILIES["glm-4.5"], tmp_path)
    source = FAMILIES["glm-4.5"].source
    for broken, whole in (
        ("call.function.name + '\n' }}", "call.function.name }}"),
        ("'</arg_key>\n' }}", "'</arg_key>' }}"),
        ("'</arg_value>\n' }}", "'</arg_value>' }}"),
    ):
        assert broken in source
        source = source.replace(broken, whole)
    tokenizer.chat_template = source
    assert ChatFormat(tokenizer).dialect.name == "glm_4_7"


async def test_sampled_turns_stay_where_the_config_says_so(tmp_path: Path) -> None:
    chat = chat_of("qwen3", tmp_path, earlier_turns="sampled")
    assert not chat.rewrites_turns
    prompts = await contexts_of(chat, f"{THOUGHT}One.", f"{THOUGHT}Two.", "Three.")
    assert prompts[2].count("<think>") == 2
    assert prompts[2].startswith(prompts[1])


async def test_nothing_begins_anew_without_a_thought(tmp_path: Path) -> None:
    chat = chat_of("qwen3", tmp_path)
    prompts = await contexts_of(chat, "One.", "Two.", "Three.")
    assert prompts[1].startswith(prompts[0])
    assert prompts[2].startswith(prompts[1])


async def test_turns_that_begin_inside_a_thought_lose_it(tmp_path: Path) -> None:
    prompts = await contexts_of(
        chat_of("qwen3.5", tmp_path), "so\n</think>\n\nOne.", "x\n</think>\n\n2"
    )
    assert "<|im_start|>assistant\nOne.<|im_end|>" in prompts[1]
    assert prompts[1].endswith("<|im_start|>assistant\n<think>\n")


async def test_harmony_ends_a_past_turn_otherwise(tmp_path: Path) -> None:
    turn = (
        "<|channel|>analysis<|message|>so<|end|><|start|>assistant<|channel|>final<|message|>One."
    )
    prompts = await contexts_of(chat_of("gpt-oss", tmp_path), turn, turn)
    assert "<|start|>assistant<|channel|>final<|message|>One.<|end|><|start|>user" in prompts[1]
    assert "analysis" not in prompts[1]
    assert "<|return|>" not in prompts[1]


def test_the_role_that_follows_ends_a_turn_of_glm(tmp_path: Path) -> None:
    """The policy samples it, and it stands once; where it is another's, the right one follows."""
    chat = chat_of("glm-4.5", tmp_path)
    (user,), (tool,) = chat.encode("<|user|>"), chat.encode("<|observation|>")
    assert {user, tool} <= chat.stop_token_ids
    assert (chat.write(say("x"))[-1], chat.write(Action("", (CALL,)))[-1]) == (user, tool)
    asked = (Message("user", "again"),)
    answered = (Message("tool", "rain", tool_call_id="call_0", name="weather_at"),)
    assert chat.ends_turn(user, asked)
    assert not chat.ends_turn(tool, asked)
    assert chat.ends_turn(tool, answered)
    assert not chat.ends_turn(user, answered)
    assert text_of(chat, chat.reply(asked, ended=True)) == "\nagain<|assistant|>\n"
    assert text_of(chat, chat.reply(asked, ended=False)) == "<|user|>\nagain<|assistant|>\n"
    assert text_of(chat, chat.reply(answered, ended=False)).startswith(
        "<|observation|>\n<tool_resp"
    )


def test_ids_of_calls_are_what_the_templates_take(tmp_path: Path) -> None:
    kimi = chat_of("kimi-k2", tmp_path / "kimi")
    action = kimi.parse(kimi.write(Action("", (CALL,))))
    assert action.tool_calls == (ToolCall("functions.weather_at:0", "weather_at", CALL.arguments),)
    answers = (Message("tool", "rain", tool_call_id="functions.weather_at:7", name="weather_at"),)
    assert "functions.weather_at:7\nrain" in text_of(kimi, kimi.reply(answers, ended=True))
    mistral = chat_of("mistral-v11", tmp_path / "mistral")
    assert "[CALL_ID]call00000[ARGS]" in mistral.dialect.write("", (CALL,))


def test_answers_in_any_number_follow_a_turn(
    family: str, tokenizer: PreTrainedTokenizerFast
) -> None:
    """With ids or without; gpt-oss shows the first call of a turn alone, and all answers."""
    chat = ChatFormat(tokenizer)
    for count in (1, 2, 64):
        answers = [
            Message("tool", f"rain{n}.", tool_call_id=f"call_{n}", name="f") for n in range(count)
        ]
        shown = text_of(chat, chat.reply(answers, ended=True))
        assert [shown.count(answer.text) for answer in answers] == [1] * count
    assert "rain" in text_of(chat, chat.reply((Message("tool", "rain"),), ended=True))


@settings(max_examples=25)
@given(tokens=st.lists(st.integers(0, 350), min_size=1, max_size=60))
def test_any_turn_can_be_answered(
    family: str, tokenizer: PreTrainedTokenizerFast, tokens: list[int]
) -> None:
    chat = ChatFormat(tokenizer)
    chat.parse(tokens)
    (prompt,) = chat.opening((Message("user", "ask"),))
    turn = TokenSegment("sampled", tuple(tokens))
    rewritten = chat.rewrite_turns((prompt, turn)) if chat.rewrites_turns else None
    for answer in (Message("user", "x"), Message("tool", "y", tool_call_id="call_0", name="f")):
        ended = rewritten is not None or chat.ends_turn(tokens[-1], (answer,))
        assert chat.reply((answer,), ended=ended)


def test_tools_that_move_stay_only_where_the_config_says_so(tmp_path: Path) -> None:
    """As those of Mistral's templates, which stand before the last user message."""
    tokenizer = tokenizer_of(FAMILIES["mistral"], tmp_path)
    source = FAMILIES["mistral"].source
    shown = "{{- '[AVAILABLE_TOOLS]' + tools | tojson + '[/AVAILABLE_TOOLS]' }}"
    assert shown in source
    moved = source.replace("{%- if tools %}" + shown + "{%- endif %}", "").replace(
        "{{- '[INST]'",
        "{%- if tools and messages[loop.index:] | selectattr('role', 'equalto', 'user') | list "
        "| length == 0 %}" + shown + "{%- endif %}{{- '[INST]'",
    )
    tokenizer.chat_template = moved
    with pytest.raises(
        ConfigError, match=r"start of a conversation.*policy\.earlier_turns: sampled"
    ):
        ChatFormat(tokenizer)
    assert ChatFormat(tokenizer, earlier_turns="sampled").dialect.name == "mistral"


def test_options_reach_the_template(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(FAMILIES["qwen3"], tmp_path)
    tokenizer.chat_template = FAMILIES["qwen3"].source.replace(
        "assistant\n' }}{%- endif %}",
        "assistant\n' }}{%- if enable_thinking is defined and not enable_thinking %}"
        "{{- '<think>\n\n</think>\n\n' }}{%- endif %}{%- endif %}",
    )
    plain, quiet = ChatFormat(tokenizer), ChatFormat(tokenizer, options={"enable_thinking": False})
    assert plain.turns.generation_prompt == "<|im_start|>assistant\n"
    assert quiet.turns.generation_prompt == "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    assert not quiet.begins_thinking
    with pytest.raises(ConfigError, match=r"'enable_thinkin'.* does not read"):
        ChatFormat(tokenizer, options={"enable_thinkin": False})
    with pytest.raises(ConfigError, match="'tools', which agentrl itself gives"):
        ChatFormat(tokenizer, options={"tools": []})


def test_thoughts_whose_end_a_turn_does_not_tell_exclude_tools(tmp_path: Path) -> None:
    """As DeepSeek R1's, which opens a thinking block after a question alone."""
    tokenizer = tokenizer_of(FAMILIES["deepseek-v3.1"], tmp_path)
    tokenizer.chat_template = FAMILIES["deepseek-v3.1"].source.replace(
        "{{- '<Assistant>' }}",
        "{{- '<Assistant>' }}{%- if messages[-1].role != 'tool' %}{{- '<think>\n' }}{%- endif %}",
    )
    chat = ChatFormat(tokenizer)
    assert "opens a thinking block before a tool's answer" in chat.turns.tool_fault
    with pytest.raises(ConfigError, match=r"policy\.chat_template_kwargs"):
        chat.opening((Message("user", "Go."),), ({"type": "function", "function": {}},))  # pyright: ignore[reportArgumentType]
