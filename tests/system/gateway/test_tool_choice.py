"""What a program says of tool calls: required, of one tool, none; in three protocols, to the token.

The beginning of a required call is prompt. What the policy sampled behind it is all that trains.
"""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import anthropic
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from agentrl.chat.dialects import TEMPLATES
from agentrl.chat.dialects.hermes import HERMES
from agentrl.chat.format import ChatFormat
from agentrl.chat.tokenizer import train_tokenizer
from agentrl.engine.scripted import ScriptedEngine
from agentrl.env import Action, BaseEnv, CallRule, Observation, Patch, Step, TurnRequest, say
from agentrl.errors import EnvError
from agentrl.events.history import fingerprint
from agentrl.gateway import BadRequest, GatewaySession
from agentrl.gateway.answer import build_answer
from agentrl.gateway.anthropic import AnthropicDialect
from agentrl.gateway.chat import ChatCompletionsDialect
from agentrl.gateway.dialect import ApiDialect, ChatRequest
from agentrl.gateway.responses import ResponsesDialect
from agentrl.learn.contexts import contexts
from agentrl.learn.sample import sample_of
from agentrl.message import Message, ToolCall
from agentrl.policy import GenerateRequest
from agentrl.rollout.call_rule import call_opening, read_turn
from agentrl.rollout.episode import EpisodeLimits, EpisodePosition, EpisodeRunner
from agentrl.store.codec import pack, unpack
from agentrl.task import Task
from agentrl.trajectory import Failed, Finished, Node, Tree
from agentrl_envs.blackbox import BlackBoxEnv, ProgramEndpoint
from benchmarks.letters import LetterChat

SOON_S = 120.0
QUESTION = Task(prompt="What is 2 * 21?", answer="42", id="q")
NAMES = ("add", "now")
CHAT_TOOLS: list[Any] = [{"type": "function", "function": {"name": name}} for name in NAMES]
FLAT_TOOLS: list[Any] = [{"type": "function", "name": name, "parameters": {}} for name in NAMES]
BLOCK_TOOLS: list[Any] = [{"name": name, "input_schema": {"type": "object"}} for name in NAMES]
BEGUN = {
    "hermes": ('<tool_call>\n{"name": "', '<tool_call>\n{"name": "now", "arguments":'),
    "llama3": ('{"name": "', '{"name": "now", "parameters":'),
}
BEGUN["gemma"] = BEGUN["hermes"]


@pytest.fixture(scope="module", params=list(TEMPLATES))
def chat(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ChatFormat:
    return ChatFormat(tokenizer_of(request.param, tmp_path_factory.mktemp(request.param)))


def tokenizer_of(dialect: str, folder: Path) -> PreTrainedTokenizerFast:
    texts = ["What is 2 * 21? It is 42."]
    return train_tokenizer(texts, vocab_size=300, folder=folder, template=dialect)


def text_of(chat: ChatFormat, token_ids: Sequence[int]) -> str:
    return cast("str", chat.template.tokenizer.decode(list(token_ids)))


# -- as it is told --------------------------------------------------------------------------------

HI: dict[ApiDialect, dict[str, Any]] = {
    (CHAT := ChatCompletionsDialect()): {
        "messages": [{"role": "user", "content": "hi"}],
        "tools": CHAT_TOOLS,
    },
    (FLAT := ResponsesDialect()): {"input": "hi", "tools": FLAT_TOOLS},
    (BLOCKS := AnthropicDialect()): {
        "messages": [{"role": "user", "content": "hi"}],
        "tools": BLOCK_TOOLS,
    },
}
TOLD: list[tuple[ApiDialect, Any, CallRule, str]] = [
    *[(protocol, None, "auto", "") for protocol in HI],
    *[(protocol, rule, rule, "") for protocol in (CHAT, FLAT) for rule in ("auto", "none")],
    *[(protocol, "required", "required", "") for protocol in (CHAT, FLAT)],
    (CHAT, {"type": "function", "function": {"name": "now"}}, "required", "now"),
    (FLAT, {"type": "function", "name": "now"}, "required", "now"),
    (BLOCKS, {"type": "auto", "disable_parallel_tool_use": False}, "auto", ""),
    (BLOCKS, {"type": "none"}, "none", ""),
    (BLOCKS, {"type": "any"}, "required", ""),
    (BLOCKS, {"type": "tool", "name": "now"}, "required", "now"),
]


@pytest.mark.parametrize(("protocol", "choice", "rule", "tool"), TOLD)
def test_every_protocol_says_it_in_its_way(
    protocol: ApiDialect, choice: Any, rule: CallRule, tool: str
) -> None:
    asked = protocol.read({**HI[protocol], "tool_choice": choice})
    assert asked.request == TurnRequest(calls=rule, tool=tool)
    # An environment that ignores the field leaves it to the policy.
    ignored = protocol.read({**HI[protocol], "tool_choice": choice}, ["tool_choice"])
    assert ignored.request == TurnRequest()
    if protocol is FLAT:
        told = protocol.answer(asked, build_answer(say("x"), asked.request, id="0"))
        assert told["tool_choice"] == ("auto" if choice is None else choice)


@pytest.mark.parametrize(
    ("protocol", "choice", "words"),
    [
        (CHAT, {"type": "function", "function": {"name": "no"}}, "'no'.*offers no such tool"),
        (CHAT, {"type": "function", "name": "now"}, "'tool_choice' lacks 'function'"),
        (CHAT, {"type": "function", "function": {"name": ""}}, "not supported"),
        (CHAT, {"type": "allowed_tools", "allowed_tools": {}}, "allowed_tools.*ignore_fields"),
        (CHAT, ["required"], "not supported"),
        (FLAT, {"type": "function", "name": "no"}, "'no'.*offers no such tool"),
        (FLAT, {"type": "web_search"}, "web_search.*not supported.*ignore_fields"),
        (BLOCKS, "any", "'any', which is not supported"),
        (BLOCKS, {"type": "required"}, "not supported"),
        (BLOCKS, {"type": "tool", "name": "no"}, "'no'.*offers no such tool"),
        (BLOCKS, {"type": "any", "disable_parallel_tool_use": True}, "parallel.*not supported"),
    ],
)
def test_what_cannot_be_kept_is_refused(protocol: ApiDialect, choice: Any, words: str) -> None:
    with pytest.raises(BadRequest, match=f"'tool_choice'.*{words}|{words}"):
        protocol.read({**HI[protocol], "tool_choice": choice})


# -- as tokens ------------------------------------------------------------------------------------


def test_a_required_call_begins_as_the_dialect_writes_it(chat: ChatFormat) -> None:
    for tool, begun in zip(("", "now"), BEGUN[chat.dialect.name], strict=True):
        opening = chat.call_opening(tool)
        assert (opening.source, text_of(chat, opening.token_ids)) == ("template", begun)
    evil = f'a"{chat.turns.closing.strip()}'
    shown = chat.call_opening(evil).token_ids
    assert not chat.stop_token_ids & {*shown}, "a tool's name cannot end the turn"
    assert json.dumps(evil) in text_of(chat, shown)


def written(chat: ChatFormat, name: str, arguments: dict[str, Any], *, tool: str) -> list[int]:
    """Return what the policy samples of a call behind its beginning."""
    whole = chat.dialect.write("", (ToolCall("", name, arguments),))
    assert chat.dialect.begin is not None
    return [*chat.encode(whole.removeprefix(chat.dialect.begin(tool))), *closing(chat)]


def closing(chat: ChatFormat) -> tuple[int, ...]:
    return chat.encode(chat.turns.closing)


async def chat_agent(task: Task, endpoint: ProgramEndpoint) -> str:
    messages: list[Any] = [{"role": "user", "content": "q"}]
    told: list[Any] = []
    async with openai.AsyncOpenAI(base_url=endpoint.openai_url, api_key=endpoint.key) as client:
        for choice in ("required", {"type": "function", "function": {"name": "now"}}, "none"):
            found = await client.chat.completions.create(
                model="", messages=messages, tools=CHAT_TOOLS, tool_choice=cast("Any", choice)
            )
            message, usage = found.choices[0].message, found.usage
            assert usage is not None
            made: list[Any] = [*(message.tool_calls or ())]
            calls = [(call.function.name, call.function.arguments) for call in made]
            told.append([message.content, calls, usage.prompt_tokens, usage.completion_tokens])
            messages.append(message.model_dump(exclude_none=True))
            messages += [
                {"role": "tool", "tool_call_id": call.id, "content": "ok"} for call in made
            ]
    return json.dumps(told)


async def flat_agent(task: Task, endpoint: ProgramEndpoint) -> str:
    after: Any = openai.omit
    given: Any = "q"
    told: list[Any] = []
    async with openai.AsyncOpenAI(base_url=endpoint.openai_url, api_key=endpoint.key) as client:
        for choice in ("required", {"type": "function", "name": "now"}, "none"):
            found = await client.responses.create(
                model="",
                input=given,
                tools=FLAT_TOOLS,
                tool_choice=cast("Any", choice),
                previous_response_id=after,
            )
            made: list[Any] = [one for one in found.output if one.type == "function_call"]
            calls = [(one.name, one.arguments) for one in made]
            assert found.usage is not None
            usage = (found.usage.input_tokens, found.usage.output_tokens)
            told.append([found.output_text or None, calls, *usage])
            after = found.id
            given = [
                {"type": "function_call_output", "call_id": one.call_id, "output": "ok"}
                for one in made
            ]
    return json.dumps(told)


async def block_agent(task: Task, endpoint: ProgramEndpoint) -> str:
    messages: list[Any] = [{"role": "user", "content": "q"}]
    told: list[Any] = []
    url, key = endpoint.anthropic_url, endpoint.key
    async with anthropic.AsyncAnthropic(base_url=url, api_key=key) as client:
        for choice in ({"type": "any"}, {"type": "tool", "name": "now"}, {"type": "none"}):
            found = await client.messages.create(
                model="",
                max_tokens=99,
                messages=messages,
                tools=BLOCK_TOOLS,
                tool_choice=cast("Any", choice),
            )
            blocks: list[Any] = [*found.content]
            made = [one for one in blocks if one.type == "tool_use"]
            calls = [(one.name, json.dumps(one.input)) for one in made]
            text = next((one.text for one in blocks if one.type == "text"), None)
            told.append([text, calls, found.usage.input_tokens, found.usage.output_tokens])
            messages.append({"role": "assistant", "content": found.content})
            results = [
                {"type": "tool_result", "tool_use_id": one.id, "content": "ok"} for one in made
            ]
            messages.append({"role": "user", "content": results})
    return json.dumps(told)


async def play(
    chat: Any, agent: Any, turns: Sequence[Sequence[int]], **episode: Any
) -> tuple[EpisodeRunner, ScriptedEngine, list[Any], Any]:
    """Return an episode in which the policy samples these turns, and what its program was told."""
    left = [list(turn) for turn in turns]

    def reply(request: GenerateRequest) -> list[int]:
        return left.pop(0)

    told: list[Any] = []

    def score(task: Task, result: str) -> float:
        told.extend(json.loads(result))
        return 1.0

    engine = ScriptedEngine(reply)
    played = EpisodeRunner(
        env=BlackBoxEnv(tasks=lambda split, seed: [QUESTION], score=score, agent=agent),
        engine=engine,
        chat=chat,
        tree=Tree(QUESTION),
        sample=0,
        seed=1,
        limits=EpisodeLimits(context_tokens=4096),
        **episode,
    )
    leaf = await asyncio.wait_for(played.run(), SOON_S)
    played.tree.end(leaf)
    return played, engine, told, leaf.outcome


def trained(tree: Tree) -> list[tuple[int, ...]]:
    """Return what trains, turn by turn."""
    sample = sample_of(tree, tree.leaves[0])
    assert sample is not None
    found: dict[int, list[int]] = {}
    for one in contexts(sample):
        for at in one.sample.mask.nonzero()[0].tolist():
            turn = int(one.sample.turns[at])
            found.setdefault(turn, []).append(int(one.sample.token_ids[at]))
    return [tuple(found[turn]) for turn in sorted(found)]


@pytest.mark.parametrize("agent", [chat_agent, flat_agent, block_agent])
async def test_three_turns_of_every_rule_train_on_what_was_sampled(
    chat: ChatFormat, agent: Any
) -> None:
    turns = [
        written(chat, "add", {"a": 1}, tool=""),
        written(chat, "now", {}, tool="now"),
        [*chat.encode("It is 42."), *closing(chat)],
    ]
    episode, engine, told, outcome = await play(chat, agent, turns)
    assert outcome == Finished(1.0)
    # Every context is the one before, what was sampled in it, and what came after.
    prompts = [request.prompt for request in engine.requests]
    for before, sampled, after in zip(prompts, turns, prompts[1:], strict=False):
        assert after[: len(before) + len(sampled)] == (*before, *sampled)
    begun = [*BEGUN[chat.dialect.name], ""]
    for prompt, opening in zip(prompts, begun, strict=True):
        assert text_of(chat, prompt).endswith(chat.turns.generation_prompt + opening)
    assert trained(episode.tree) == [tuple(turn) for turn in turns]
    assert told == [
        [None, [["add", '{"a": 1}']], len(prompts[0]), len(turns[0])],
        [None, [["now", "{}"]], len(prompts[1]), len(turns[1])],
        ["It is 42.", [], len(prompts[2]), len(turns[2])],
    ]
    (trajectory,) = episode.tree.trajectories()
    sources = trajectory.sources
    assert sources.count("sampled") == sum(map(len, turns))
    at = len(prompts[0])
    opening = chat.call_opening().token_ids
    assert trajectory.token_ids[at - len(opening) : at] == opening
    assert sources[at - len(opening) : at] == ("template",) * len(opening)


async def test_calls_that_the_rule_forbids_are_told_as_text_and_gone_on_with(
    chat: ChatFormat,
) -> None:
    second = "\n" if chat.dialect is HERMES else "; "
    more = second + chat.dialect.write("", (ToolCall("", "add", {}),))
    turns = [
        [*chat.encode("no such"), *closing(chat)],
        [*written(chat, "now", {}, tool="now")[: -len(closing(chat))], *chat.encode(more)],
        [*chat.encode(chat.dialect.write("", (ToolCall("", "add", {}),))), *closing(chat)],
    ]
    episode, engine, told, outcome = await play(chat, chat_agent, turns)
    assert outcome == Finished(1.0)
    begun = [*BEGUN[chat.dialect.name], ""]
    for (text, calls, *_), opening, turn in zip(told, begun, turns, strict=True):
        said = text_of(chat, [token for token in turn if token not in chat.stop_token_ids])
        assert (text, calls) == (opening + said, [])
    prompts = [request.prompt for request in engine.requests]
    assert [prompt[: len(prompts[0])] for prompt in prompts] == [prompts[0]] * 3
    assert prompts[2][: len(prompts[1]) + len(turns[1])] == (*prompts[1], *turns[1])
    assert trained(episode.tree) == [tuple(turn) for turn in turns]


async def test_a_conversation_forks_before_the_beginning_of_a_call(chat: ChatFormat) -> None:
    async def twice(task: Task, endpoint: ProgramEndpoint) -> str:
        """Ask one thing first with a call required and then without, and go on with both."""
        url = endpoint.openai_url
        async with openai.AsyncOpenAI(base_url=url, api_key=endpoint.key) as client:
            ask: list[Any] = [{"role": "user", "content": "q"}]
            said: list[Any] = []
            for choice in ("auto", "required", "auto"):
                if said:
                    ask = [ask[0], said[0], {"role": "user", "content": "r"}]
                found = await client.chat.completions.create(
                    model="", messages=ask, tools=CHAT_TOOLS, tool_choice=cast("Any", choice)
                )
                said.append(found.choices[0].message.model_dump(exclude_none=True))
            return "[]"

    first = [*chat.encode("one"), *closing(chat)]
    call = written(chat, "add", {}, tool="")
    _, engine, _, outcome = await play(chat, twice, [first, call, [*chat.encode("x"), *first]])
    assert outcome == Finished(1.0)
    asked, forced, free = (request.prompt for request in engine.requests)
    assert free[: len(asked) + len(first)] == (*asked, *first)
    assert forced == (*free, *chat.call_opening().token_ids)
    assert engine.requests[1].seed != engine.requests[2].seed


PIECES = (
    *('now"', '"name": "', 'add"', ', "arguments":', ', "parameters":', " {}", "}", "; ", "\n"),
    *("<tool_call>", "</tool_call>", "text", "<|python_tag|>", '{"name": "add"', ' {}, "name": "'),
)
COMPLETIONS = st.one_of(
    st.text(max_size=20), st.lists(st.sampled_from(PIECES), max_size=12).map("".join)
)
RULE_OF = st.sampled_from([("none", ""), ("required", ""), ("required", "now")])


@given(said=COMPLETIONS, rule=RULE_OF)
@settings(max_examples=300)
def test_whatever_is_sampled_a_program_gets_calls_by_its_rule_or_all_the_text(
    chat: ChatFormat, said: str, rule: tuple[CallRule, str]
) -> None:
    request = TurnRequest(calls=rule[0], tool=rule[1])
    opening = "".join(text_of(chat, part.token_ids) for part in call_opening(chat, request))
    sampled = chat.encode(said)
    answer = build_answer(read_turn(chat, request, sampled), request, id="0")
    called = {call.name for call in answer.tool_calls}
    if request.calls == "none":
        assert not called
    elif request.tool:
        assert called <= {"now"}
    if request.calls == "required" or answer.text:
        assert called or answer.text == opening + text_of(chat, sampled)


# -- as an episode --------------------------------------------------------------------------------


def asks_without(text: str) -> Any:
    """A program that requires a call, and where that is refused asks `text` without."""

    async def agent(task: Task, endpoint: ProgramEndpoint) -> str:
        async with openai.AsyncOpenAI(base_url=endpoint.openai_url, api_key=endpoint.key) as client:
            first, second = ([{"role": "user", "content": one}] for one in ("q", text))
            try:
                await client.chat.completions.create(
                    model="", messages=cast("Any", first), tools=CHAT_TOOLS, tool_choice="required"
                )
            except openai.BadRequestError as error:
                await client.chat.completions.create(model="", messages=cast("Any", second))
                return json.dumps([error.message])
        return "[]"

    return agent


async def test_a_chat_format_that_cannot_begin_a_call_is_a_refusal_that_says_so(
    chat: ChatFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = [*chat.encode("x"), *closing(chat)]
    monkeypatch.setattr(chat, "dialect", replace(chat.dialect, begin=None))
    for format, words in (
        (chat, f"the dialect '{chat.dialect.name}' has no prefix of a call"),
        (LetterChat(), "LetterChat does not support rules on tool calls"),
    ):
        _, engine, _, outcome = await play(format, asks_without("q"), [turn])
        assert isinstance(outcome, Finished), "a conversation that is answered was no fault"
        assert len(engine.requests) == 1
        _, engine, _, outcome = await play(format, asks_without("r"), [turn])
        assert isinstance(outcome, Failed)
        assert outcome.kind == "request"
        assert f"'tool_choice' of the request asks for 'required', but {words}; " in outcome.error
        assert "ignore_fields" in outcome.error
        assert len(engine.requests) == 1
    monkeypatch.setattr(chat, "begins_thinking", True)
    monkeypatch.setattr(chat, "dialect", HERMES)
    with pytest.raises(EnvError, match="makes the policy think first"):
        call_opening(chat, TurnRequest(calls="required"))


class Demands(BaseEnv):
    """Requires a call of `now` in its only turn."""

    def __init__(self, patch: Patch | None = None) -> None:
        self.done: list[Action] = []
        self.patch = patch

    def tasks(self, split: Any, *, seed: int = 0) -> list[Task]:
        return [QUESTION]

    async def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Observation, Any]:
        return Observation((Message("user", "q"),), tools=(), request=NAMED), {}

    async def step(self, action: Action) -> Step:
        self.done.append(action)
        info = {} if self.patch is None else {"patch": self.patch}
        return Observation((Message("user", "r"),)), 1.0, self.patch is None, False, info


NAMED = TurnRequest(calls="required", tool="now")


async def test_a_turn_taken_up_in_its_middle_is_read_from_its_beginning(chat: ChatFormat) -> None:
    """As a branch does, and a run that goes on from its store."""
    prompt = chat.opening((Message("user", "q"),))
    tree = Tree(QUESTION)
    at = None
    for segment in (*prompt, chat.call_opening("now")):
        at = tree.add(Node(parent=at, source=segment.source, token_ids=segment.token_ids, turn=0))
    turn = written(chat, "now", {"a": [1]}, tool="now")
    begun = tuple(turn[:2])
    logprobs, versions = (-1.0, -1.0), (0, 0)
    at = tree.add(
        Node(
            parent=at,
            source="sampled",
            token_ids=begun,
            logprobs=logprobs,
            versions=versions,
            turn=0,
        )
    )
    env = Demands()
    engine = ScriptedEngine(lambda request: turn[2:])
    place = EpisodePosition(
        node=at,
        turn=0,
        context_tokens=len(tree.tokens(at)),
        begun=begun,
        request=unpack(pack(NAMED)),
    )
    episode = EpisodeRunner(
        env=env, engine=engine, chat=chat, tree=tree, sample=0, seed=1, begin=place
    )
    episode.limits = EpisodeLimits(context_tokens=4096)
    assert (await episode.run()).outcome == Finished(1.0)
    (action,) = env.done
    assert [(c.name, c.arguments) for c in action.tool_calls] == [("now", {"a": [1]})]
    assert not action.malformed


async def test_a_required_call_is_not_patched(chat: ChatFormat) -> None:
    engine = ScriptedEngine(lambda request: written(chat, "now", {}, tool="now"))
    limits = EpisodeLimits(context_tokens=4096)
    env = Demands(Patch(say("x")))
    episode = EpisodeRunner(
        env=env, engine=engine, chat=chat, tree=Tree(QUESTION), sample=0, seed=1, limits=limits
    )
    outcome = (await episode.run()).outcome
    assert isinstance(outcome, Failed)
    assert "turn 0 is patched, but its request required a tool call" in outcome.error


def test_a_rule_is_part_of_what_an_observation_says() -> None:
    shown = [
        fingerprint(Observation((), request=request))
        for request in (TurnRequest(), TurnRequest(calls="none"), NAMED)
    ]
    assert len({*shown}) == 3
    # Stores of runs that knew no rule have this one.
    assert shown[0] == "c6d86fbbf40136a7"


async def test_another_rule_is_another_question_and_the_same_one_a_retry() -> None:
    desk = GatewaySession()
    ask = ChatRequest(messages=(Message("user", "a"),), request=NAMED, key="k")
    first = asyncio.ensure_future(desk.ask(ask))
    question = await asyncio.wait_for(desk.next(), SOON_S)
    question.answer(say("yes"))
    await first
    assert (await asyncio.wait_for(desk.ask(ask), SOON_S))[0] is question
    for request in (TurnRequest(), TurnRequest(calls="required"), replace(NAMED, tool="add")):
        other = asyncio.ensure_future(desk.ask(replace(ask, request=request)))
        taken = await asyncio.wait_for(desk.next(), SOON_S)
        assert taken is not question
        taken.answer(say("else"))
        await other
