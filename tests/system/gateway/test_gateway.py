"""The gateway, asked by the official clients: three protocols, plain and streamed; refusals.

What is answered here is scripted; episodes that ask are in test_blackbox.py.

Mutants seen caught: an equal conversation taken for one that goes on; a question nobody waits for
taken; a taken one not refused at the end; `x-api-key` not read; a wrong reason to stop; calls of
one message apart or lost; calls of a stream under one number.
"""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Awaitable
from dataclasses import replace
from typing import Any

import anthropic
import httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.env import Action, TurnRequest, TurnUsage, say
from agentrl.gateway import BadRequest, ChatRequest, GatewayRequest, GatewayServer, GatewaySession
from agentrl.gateway.answer import build_answer
from agentrl.gateway.anthropic import AnthropicDialect
from agentrl.gateway.bodies import BodyReader
from agentrl.gateway.chat import ChatCompletionsDialect
from agentrl.gateway.dialect import LARGEST_BYTES, ApiDialect
from agentrl.gateway.responses import ResponsesDialect
from agentrl.gateway.server import GatewayAddress
from agentrl.gateway.session import GatewaySessionClosed
from agentrl.message import Image, Message, ToolCall
from tests.support.watchdog import watched

SOON_S = 60.0
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
)
URL = f"data:image/png;base64,{base64.b64encode(PIXEL).decode()}"
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"code": {"type": "string"}}}
FUNCTION: dict[str, Any] = {"name": "python", "description": "Run it.", "parameters": SCHEMA}
TOOL = {"type": "function", "function": FUNCTION}
BOTH = Action("Let me see.", (ToolCall("call_7", "python", {"code": "1 + 1", "é": [1]}),))


@pytest.fixture
async def gateway() -> AsyncIterator[GatewayServer]:
    opened = await GatewayServer.open()
    yield opened
    await opened.close()


@pytest.fixture
def place(gateway: GatewayServer) -> GatewayAddress:
    return gateway.place()


@pytest.fixture
async def chats(place: GatewayAddress) -> AsyncIterator[openai.AsyncOpenAI]:
    url = f"{place.url}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="any", max_retries=0) as client:
        yield client


@pytest.fixture
async def messages(place: GatewayAddress) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=place.url, api_key="any", max_retries=0) as client:
        yield client


async def answered(
    place: GatewayAddress, asking: Awaitable[Any], *actions: Action
) -> tuple[Any, GatewayRequest]:
    """Answer questions in turn; return what the client found, and the last question."""
    task = asyncio.ensure_future(asking)
    question: GatewayRequest | None = None
    async with asyncio.timeout(SOON_S):
        for action in actions:
            question = await place.desk.next()
            question.answer(action)
        found = await task
    assert question is not None
    return found, question


CONVERSATION = (
    Message("system", "Be brief."),
    Message("user", ("What is this?", Image(PIXEL))),
    Message("assistant", "Let me see.", tool_calls=(ToolCall("call_1", "python", {"code": "2"}),)),
    Message("tool", "2", tool_call_id="call_1"),
    Message("assistant", "Two."),
    Message("user", "Why?"),
)


# -- OpenAI's chat completions --------------------------------------------------------------------

CHAT: list[Any] = [
    {"role": "developer", "content": "Be brief."},
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "What is this?"},
            {"type": "image_url", "image_url": {"url": URL}},
        ],
    },
    {
        "role": "assistant",
        "content": "Let me see.",
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "python", "arguments": '{"code": "2"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "2"}]},
    {"role": "assistant", "content": "Two."},
    {"role": "user", "content": "Why?"},
]


async def test_chat_completions(place: GatewayAddress, chats: openai.AsyncOpenAI) -> None:
    asking = chats.chat.completions.create(model="m", messages=CHAT, tools=[TOOL])  # pyright: ignore
    found, asked = await answered(place, asking, BOTH)
    assert asked.messages == CONVERSATION
    assert asked.tools == (TOOL,)
    (choice,) = found.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me see."
    (made,) = choice.message.tool_calls
    assert (made.id, made.function.name) == ("call_0_0", "python")
    assert json.loads(made.function.arguments) == {"code": "1 + 1", "é": [1]}
    assert found.model == "m"
    plain = chats.chat.completions.create(model="m", messages=CHAT[:1])
    found, _ = await answered(place, plain, say("Hello"))
    assert found.choices[0].message.content == "Hello"
    assert found.choices[0].finish_reason == "stop"
    assert not found.choices[0].message.tool_calls


async def test_chat_completions_as_a_stream(
    place: GatewayAddress, chats: openai.AsyncOpenAI
) -> None:
    async def listen() -> Any:
        async with chats.chat.completions.stream(model="m", messages=CHAT) as stream:
            return await stream.get_final_completion()

    found, _ = await answered(place, listen(), BOTH)
    (choice,) = found.choices
    assert (choice.message.content, choice.finish_reason) == ("Let me see.", "tool_calls")
    (made,) = choice.message.tool_calls
    assert (made.id, made.function.name) == ("call_0_0", "python")
    assert json.loads(made.function.arguments) == BOTH.tool_calls[0].arguments


# -- OpenAI's responses ---------------------------------------------------------------------------

INPUT: list[Any] = [
    {
        "role": "user",
        "content": [
            {"type": "input_text", "text": "What is this?"},
            {"type": "input_image", "image_url": URL, "detail": "auto"},
        ],
    },
    {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Let me see.", "annotations": []}],
    },
    {
        "type": "function_call",
        "call_id": "call_1",
        "name": "python",
        "arguments": '{"code": "2"}',
    },
    {"type": "function_call_output", "call_id": "call_1", "output": "2"},
    {"type": "message", "role": "assistant", "content": "Two."},
    {"role": "user", "content": "Why?"},
]


async def test_responses(place: GatewayAddress, chats: openai.AsyncOpenAI) -> None:
    flat: dict[str, Any] = {"type": "function", "strict": None, **FUNCTION}
    asking = chats.responses.create(
        model="m",
        instructions="Be brief.",
        input=INPUT,
        tools=[flat],  # pyright: ignore
    )
    found, asked = await answered(place, asking, BOTH)
    assert asked.messages == CONVERSATION
    assert asked.tools == (TOOL,)
    assert found.output_text == "Let me see."
    (made,) = [item for item in found.output if item.type == "function_call"]
    assert (made.call_id, made.name) == ("call_0_0", "python")
    assert json.loads(made.arguments) == BOTH.tool_calls[0].arguments
    output = {"type": "function_call_output", "call_id": "call_0_0", "output": "2"}
    asking = chats.responses.create(
        model="m",
        previous_response_id=found.id,
        input=[output],  # pyright: ignore
    )
    _, asked = await answered(place, asking, say("So it is."))
    own = replace(BOTH.message, tool_calls=(replace(BOTH.tool_calls[0], id="call_0_0"),))
    # Instructions are a request's own, and these are none.
    told = Message("tool", "2", tool_call_id="call_0_0")
    assert asked.messages == (*CONVERSATION[1:], own, told)


async def test_a_call_after_a_text_of_the_turn_before_is_a_turn_of_its_own(
    place: GatewayAddress, chats: openai.AsyncOpenAI
) -> None:
    """Kills: every call added to the text before it."""
    flat: dict[str, Any] = {"type": "function", "strict": None, **FUNCTION}
    said = [dict(item) for item in INPUT]
    only_call = replace(BOTH, text="")
    for action in (say("Let me see."), only_call):
        asking = chats.responses.create(model="m", input=said, tools=[flat])  # pyright: ignore
        answer, _ = await answered(place, asking, action)
        said += [item.model_dump() for item in answer.output]
    said.append({"type": "function_call_output", "call_id": said[-1]["call_id"], "output": "2"})
    asking = chats.responses.create(model="m", input=said, tools=[flat])  # pyright: ignore
    _, asked = await answered(place, asking, say("2"))
    assert [message.text for message in asked.messages[-3:]] == ["Let me see.", "", "2"]


async def test_responses_as_a_stream(place: GatewayAddress, chats: openai.AsyncOpenAI) -> None:
    async def listen() -> Any:
        async with chats.responses.stream(model="m", input="Hello") as stream:
            return await stream.get_final_response()

    found, asked = await answered(place, listen(), BOTH)
    assert asked.messages == (Message("user", "Hello"),)
    assert found.output_text == "Let me see."
    (made,) = [item for item in found.output if item.type == "function_call"]
    assert json.loads(made.arguments) == BOTH.tool_calls[0].arguments


# -- Anthropic's messages -------------------------------------------------------------------------

BLOCKS: list[Any] = [
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "What is this?"},
            {
                "type": "image",
                "source": {
                    "type": "base64",
                    "media_type": "image/png",
                    "data": base64.b64encode(PIXEL).decode(),
                },
            },
        ],
    },
    {
        "role": "assistant",
        "content": [
            {"type": "text", "text": "Let me see."},
            {"type": "tool_use", "id": "call_1", "name": "python", "input": {"code": "2"}},
        ],
    },
    {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": "2"}],
    },
    {"role": "assistant", "content": "Two."},
    {"role": "user", "content": "Why?"},
]


@pytest.mark.parametrize(
    ("content", "text"),
    [("no file", "Error: no file"), ("Error: 2", "Error: 2"), (None, "Error: ")],
)
async def test_a_result_that_is_an_error_says_so(
    place: GatewayAddress, messages: anthropic.AsyncAnthropic, content: Any, text: str
) -> None:
    """Kills: `is_error` dropped."""
    result = {"type": "tool_result", "tool_use_id": "call_1", "is_error": True}
    block = {**result, **({} if content is None else {"content": content})}
    told = [*BLOCKS[:2], {"role": "user", "content": [block]}]
    asking = messages.messages.create(model="m", max_tokens=9, messages=told)  # pyright: ignore
    _, asked = await answered(place, asking, say("Hm."))
    assert asked.messages[-1].text == text


async def test_messages(place: GatewayAddress, messages: anthropic.AsyncAnthropic) -> None:
    tool = {"name": "python", "description": "Run it.", "input_schema": SCHEMA}
    asking = messages.messages.create(
        model="m",
        max_tokens=9,
        system="Be brief.",
        messages=BLOCKS,
        tools=[tool],  # pyright: ignore
    )
    found, asked = await answered(place, asking, BOTH)
    assert asked.messages == CONVERSATION
    assert asked.tools == (TOOL,)
    text, use = found.content
    assert (text.text, found.stop_reason) == ("Let me see.", "tool_use")
    assert (use.id, use.name, use.input) == ("call_0_0", "python", BOTH.tool_calls[0].arguments)
    system = [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]
    answer = [{"type": "tool_result", "tool_use_id": "call_1"}, {"type": "text", "text": "Go on."}]
    asking = messages.messages.create(
        model="m",
        max_tokens=9,
        system=system,  # pyright: ignore
        messages=[*BLOCKS[:2], {"role": "user", "content": answer}],  # pyright: ignore
    )
    found, asked = await answered(place, asking, say("Hello"))
    assert asked.messages[3:] == (
        Message("tool", "", tool_call_id="call_1"),
        Message("user", "Go on."),
    )
    assert found.stop_reason == "end_turn"


async def test_messages_as_a_stream(
    place: GatewayAddress, messages: anthropic.AsyncAnthropic
) -> None:
    async def listen() -> Any:
        async with messages.messages.stream(model="m", max_tokens=9, messages=BLOCKS) as stream:
            return await stream.get_final_message()

    found, _ = await answered(place, listen(), BOTH)
    text, use = found.content
    assert (text.text, found.stop_reason) == ("Let me see.", "tool_use")
    assert (use.id, use.name, use.input) == ("call_0_0", "python", BOTH.tool_calls[0].arguments)


# -- what programs repeat --------------------------------------------------------------------------

TWO = Action(
    "Both.", (ToolCall("call_1", "f", {"a": 1}), ToolCall("call_2", "g", {"b": ["x", None]}))
)
ANSWERED = (
    Message("tool", "one", tool_call_id="call_0_0"),
    Message("tool", "two", tool_call_id="call_0_1"),
)


async def repeat_chat(client: openai.AsyncOpenAI, stream: bool) -> None:
    told: list[Any] = [{"role": "user", "content": "Go"}]
    if stream:
        async with client.chat.completions.stream(model="m", messages=told) as chunks:
            found: Any = await chunks.get_final_completion()
    else:
        found = await client.chat.completions.create(model="m", messages=told)
    told.append(found.choices[0].message.model_dump(exclude_none=True))
    told += [
        {"role": "tool", "tool_call_id": one.tool_call_id, "content": one.content}
        for one in ANSWERED
    ]
    await client.chat.completions.create(model="m", messages=told)


async def repeat_responses(client: openai.AsyncOpenAI, stream: bool) -> None:
    told: list[Any] = [{"role": "user", "content": "Go"}]
    if stream:
        async with client.responses.stream(model="m", input=told) as events:
            found: Any = await events.get_final_response()
    else:
        found = await client.responses.create(model="m", input=told)
    told += [item.model_dump(exclude_none=True) for item in found.output]
    for answer in ANSWERED:
        call_id, output = answer.tool_call_id, answer.content
        told.append({"type": "function_call_output", "call_id": call_id, "output": output})
    await client.responses.create(model="m", input=told)


async def repeat_messages(client: anthropic.AsyncAnthropic, stream: bool) -> None:
    told: list[Any] = [{"role": "user", "content": "Go"}]
    if stream:
        async with client.messages.stream(model="m", max_tokens=9, messages=told) as events:
            found: Any = await events.get_final_message()
    else:
        found = await client.messages.create(model="m", max_tokens=9, messages=told)
    told.append({"role": "assistant", "content": [b.model_dump() for b in found.content]})
    results = [
        {"type": "tool_result", "tool_use_id": one.tool_call_id, "content": one.content}
        for one in ANSWERED
    ]
    told.append({"role": "user", "content": results})
    await client.messages.create(model="m", max_tokens=9, messages=told)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("protocol", ["chat", "responses", "messages"])
async def test_a_message_that_comes_back_is_the_one_that_was_sent(
    place: GatewayAddress,
    chats: openai.AsyncOpenAI,
    messages: anthropic.AsyncAnthropic,
    protocol: str,
    stream: bool,
) -> None:
    asking = {
        "chat": lambda: repeat_chat(chats, stream),
        "responses": lambda: repeat_responses(chats, stream),
        "messages": lambda: repeat_messages(messages, stream),
    }[protocol]()
    _, asked = await answered(place, asking, TWO, say("done"))
    assert asked.node.continuation() == (0, ANSWERED)


# -- usage, limits and ends -----------------------------------------------------------------------

CUT = Action("Once upon", usage=TurnUsage(11, 7, cached_tokens=3, finish="length"))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_chat_completions_tell_the_usage_and_what_was_cut(
    place: GatewayAddress, chats: openai.AsyncOpenAI, stream: bool
) -> None:
    async def ask() -> Any:
        if not stream:
            return await chats.chat.completions.create(model="m", messages=CHAT[:1], max_tokens=7)
        usage: Any = {"include_usage": True}
        chunks = await chats.chat.completions.create(
            model="m", messages=CHAT[:1], max_tokens=9, max_completion_tokens=7, stream=True,
            stream_options=usage,
        )  # fmt: skip
        found = [chunk async for chunk in chunks]
        assert [len(chunk.choices) for chunk in found] == [1, 1, 1, 0]
        assert [chunk.usage for chunk in found[:-1]] == [None] * 3
        found[-1].choices = found[-2].choices
        return found[-1]

    found, question = await answered(place, ask(), CUT)
    assert question.request == TurnRequest(max_tokens=7)
    usage = found.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (11, 7, 18)
    assert usage.prompt_tokens_details.cached_tokens == 3
    assert found.choices[0].finish_reason == "length"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_responses_tell_the_usage_and_what_was_cut(
    place: GatewayAddress, chats: openai.AsyncOpenAI, stream: bool
) -> None:
    async def ask() -> Any:
        asked: dict[str, Any] = {"model": "m", "input": "Hello", "max_output_tokens": 7}
        if not stream:
            return await chats.responses.create(**asked)
        events: Any = await chats.responses.create(**asked, stream=True)
        kinds: list[Any] = [event async for event in events]
        assert kinds[0].response.usage is None
        assert kinds[-1].type == "response.incomplete"
        return kinds[-1].response

    found, question = await answered(place, ask(), CUT)
    assert question.request == TurnRequest(max_tokens=7)
    usage = found.usage
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (11, 7, 18)
    assert usage.input_tokens_details.cached_tokens == 3
    assert (found.status, found.incomplete_details.reason) == ("incomplete", "max_output_tokens")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_messages_tell_the_usage_and_what_ended_them(
    place: GatewayAddress, messages: anthropic.AsyncAnthropic, stream: bool
) -> None:
    async def ask(**more: Any) -> Any:
        asked: dict[str, Any] = {"model": "m", "max_tokens": 7, "messages": BLOCKS[:1], **more}
        if not stream:
            return await messages.messages.create(**asked)
        async with messages.messages.stream(**asked) as events:
            return await events.get_final_message()

    found, question = await answered(place, ask(), CUT)
    assert question.request == TurnRequest(max_tokens=7)
    usage = found.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (8, 3, 7)
    assert (found.stop_reason, found.stop_sequence) == ("max_tokens", None)
    found, question = await answered(place, ask(stop_sequences=["upon", "zz"]), CUT)
    assert question.request == TurnRequest(max_tokens=7, stop=("upon", "zz"))
    assert (found.stop_reason, found.stop_sequence) == ("stop_sequence", "upon")
    assert found.content[0].text == "Once "


@given(st.text("ab.", max_size=8), st.lists(st.text("ab.", min_size=1, max_size=2), max_size=3))
def test_an_answer_ends_before_the_first_of_its_stops(text: str, stops: list[str]) -> None:
    answer = build_answer(say(text), TurnRequest(stop=tuple(stops)), id="0")
    assert text.startswith(answer.text)
    assert not any(stop in answer.text for stop in stops)
    assert (answer.stop is None) == (answer.text == text)
    assert answer.stop is None or text[len(answer.text) :].startswith(answer.stop)


def test_a_malformed_call_is_passed_on_as_its_text() -> None:
    said = 'I try. <tool_call>{"name": 1}</tool_call>'
    action = Action("I try.", (ToolCall("a", "f", {}),), ("bad",), malformed_text=said)
    answer = build_answer(action, TurnRequest(), id="3")
    assert (answer.text, answer.tool_calls, answer.finish) == (said, (), "stop")
    answer = build_answer(BOTH, TurnRequest(), id="3")
    assert [call.id for call in answer.tool_calls] == ["call_3_0"]
    assert answer.finish == "tool_calls"


# -- refusals -------------------------------------------------------------------------------------

REFUSED: list[tuple[ApiDialect, dict[str, Any], str]] = [
    (ChatCompletionsDialect(), {}, "lacks 'messages'"),
    (ChatCompletionsDialect(), {"messages": []}, "is empty"),
    (ChatCompletionsDialect(), {"messages": "hi"}, "is str, expected list"),
    (ChatCompletionsDialect(), {"messages": ["hi"]}, "list of objects"),
    (ChatCompletionsDialect(), {"messages": [{"role": "robot", "content": ""}]}, "role 'robot'"),
    (
        ChatCompletionsDialect(),
        {"messages": [{"role": "tool", "content": ""}]},
        "lacks 'tool_call_id'",
    ),
    (ChatCompletionsDialect(), {"messages": CHAT, "n": 2}, "'n' of the request is 2, but only 1"),
    (
        ChatCompletionsDialect(),
        {"messages": CHAT, "tools": [{"type": "web_search"}]},
        "only functions",
    ),
    (
        ChatCompletionsDialect(),
        {"messages": CHAT, "temperature": 0.2},
        "'temperature' of the request is 0.2",
    ),
    (
        ChatCompletionsDialect(),
        {"messages": CHAT, "tool_choice": "required"},
        "'tool_choice'.*'required'.*add it",
    ),
    (
        ChatCompletionsDialect(),
        {"messages": CHAT, "tool_choice": "some"},
        "'tool_choice'.*'some'.*ignore_fields",
    ),
    (
        ChatCompletionsDialect(),
        {"messages": CHAT, "response_format": {"type": "json_object"}},
        "'response_format'",
    ),
    (ChatCompletionsDialect(), {"messages": CHAT, "functions": [FUNCTION]}, "'functions'"),
    (
        ChatCompletionsDialect(),
        {"messages": CHAT, "reasoning_effort": "low"},
        "'reasoning_effort'.*not a supported field",
    ),
    (ChatCompletionsDialect(), {"messages": CHAT, "max_tokens": 0}, "whole number from 1"),
    (ChatCompletionsDialect(), {"messages": CHAT, "max_tokens": True}, "whole number from 1"),
    (ChatCompletionsDialect(), {"messages": CHAT, "stop": ["a"] * 17}, "at most 16"),
    (ChatCompletionsDialect(), {"messages": CHAT, "stop": [""]}, "1 to 100 characters"),
    (
        ChatCompletionsDialect(),
        {"messages": [{"role": "user", "content": "a", "name": "Eve"}]},
        "'name'.*'Eve'",
    ),
    (ResponsesDialect(), {"input": "hi", "max_tool_calls": 1}, "'max_tool_calls'"),
    (ResponsesDialect(), {"input": "hi", "text": {"format": {"type": "json_schema"}}}, "'text'"),
    (AnthropicDialect(), {"messages": BLOCKS, "max_tokens": 9, "top_k": 4}, "'top_k'"),
    (AnthropicDialect(), {"messages": BLOCKS, "tool_choice": {"type": "any"}}, "'any'.*add it"),
    (
        ChatCompletionsDialect(),
        {"messages": [{"role": "user", "content": [{"type": "audio"}]}]},
        "has type 'audio'",
    ),
    (
        ChatCompletionsDialect(),
        {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}],
                }
            ]
        },
        "URLs are not fetched",
    ),
    (
        ChatCompletionsDialect(),
        {
            "messages": [
                {
                    "role": "assistant",
                    "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "[1]"}}],
                }
            ]
        },
        "must be a JSON object",
    ),
    (ResponsesDialect(), {"input": []}, "is empty"),
    (ResponsesDialect(), {"input": "hi", "previous_response_id": "resp_"}, "'resp_', which is not"),
    (ResponsesDialect(), {"input": "hi", "previous_response_id": 0}, "is 0, which is not"),
    (ResponsesDialect(), {"input": [{"type": "file"}]}, "has type 'file'"),
    (ResponsesDialect(), {"input": "hi", "background": True}, "only False is supported"),
    (ResponsesDialect(), {"input": "hi", "tools": [{"type": "mcp"}]}, "only functions"),
    (AnthropicDialect(), {"messages": []}, "is empty"),
    (AnthropicDialect(), {"messages": [{"role": "tool", "content": ""}]}, "role 'tool'"),
    (
        AnthropicDialect(),
        {"messages": [*BLOCKS, {"role": "assistant", "content": "{"}]},
        "the last message is the assistant's",
    ),
    (AnthropicDialect(), {"messages": [{"role": "user", "content": []}]}, "say nothing"),
    (
        AnthropicDialect(),
        {"messages": [{"role": "user", "content": [{"type": "x"}]}]},
        "has type 'x'",
    ),
    (AnthropicDialect(), {"messages": BLOCKS, "tools": [{"type": "bash_1", "name": "b"}]}, "own"),
]


@pytest.mark.parametrize(("protocol", "body", "words"), REFUSED)
def test_what_cannot_be_answered_is_refused_with_a_reason(
    protocol: ApiDialect, body: dict[str, Any], words: str
) -> None:
    with pytest.raises(BadRequest, match=words):
        protocol.read(body)


def test_what_is_ignored_by_name_is_not_refused() -> None:
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": "a", "name": "Eve"}],
        "temperature": 0.2,
        "tool_choice": "required",
        "stop": ["x"],
        "novel": 1,
    }
    ignored = ["temperature", "tool_choice", "name", "stop", "novel"]
    assert ChatCompletionsDialect().read(body, ignored).request == TurnRequest()
    for name in ignored:
        if name != "stop":
            with pytest.raises(BadRequest, match=name):
                ChatCompletionsDialect().read(body, [other for other in ignored if other != name])


async def test_clients_see_refusals_as_their_own_errors(
    gateway: GatewayServer,
    place: GatewayAddress,
    chats: openai.AsyncOpenAI,
    messages: anthropic.AsyncAnthropic,
) -> None:
    with pytest.raises(openai.BadRequestError, match="only 1 is supported"):
        await chats.chat.completions.create(model="m", messages=CHAT, n=3)
    with pytest.raises(anthropic.BadRequestError, match="is empty"):
        await messages.messages.create(model="m", max_tokens=1, messages=[])
    with pytest.raises(openai.BadRequestError, match="not a response of this episode"):
        await chats.responses.create(model="m", input="x", previous_response_id="resp_1")
    with pytest.raises(openai.BadRequestError, match="not a response of this episode"):
        await chats.responses.create(model="m", input="x", previous_response_id="resp_" + "0" * 10)
    assert len(place.desk.refusals) == 4
    long = asyncio.ensure_future(
        messages.messages.create(
            model="m", max_tokens=1, messages=[{"role": "user", "content": "x"}]
        )
    )
    (await asyncio.wait_for(place.desk.next(), SOON_S)).refuse("9 tokens", is_too_long=True)
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long: 9 tokens"):
        await long
    assert len(place.desk.refusals) == 4
    asking = asyncio.ensure_future(chats.chat.completions.create(model="m", messages=CHAT))
    await asyncio.wait_for(place.desk.next(), SOON_S)
    gateway.free(place)
    with pytest.raises(openai.APIStatusError, match="this episode is over") as over:
        await asyncio.wait_for(asking, SOON_S)
    assert over.value.status_code == 410
    with pytest.raises(openai.AuthenticationError, match="no running episode has this key"):
        await chats.chat.completions.create(model="m", messages=CHAT)


async def test_what_is_asked_again_and_answered_was_no_fault(
    place: GatewayAddress, chats: openai.AsyncOpenAI
) -> None:
    """Mutant: what nobody can render is a fault for good, also without the field at fault."""
    tools: Any = [TOOL]
    required = chats.chat.completions.create(
        model="m", messages=CHAT, tools=tools, tool_choice="required"
    )
    other = chats.chat.completions.create(model="m", messages=CHAT[:2], tools=tools)
    for asking in (required, other):
        refused = asyncio.ensure_future(asking)
        (await asyncio.wait_for(place.desk.next(), SOON_S)).refuse("no turn begins so")
        with pytest.raises(openai.BadRequestError, match="no turn begins so"):
            await refused
    assert len(place.desk.refusals) == 2
    again = chats.chat.completions.create(model="m", messages=CHAT, tools=tools)
    await answered(place, again, say("yes"))
    assert len(place.desk.refusals) == 1


@watched
async def test_bodies_that_are_none(gateway: GatewayServer, place: GatewayAddress) -> None:
    async with httpx.AsyncClient(base_url=gateway.url) as client:
        headers = {"Authorization": f"Bearer {place.key}"}
        deep = b'{"messages":' + b"[" * 5000 + b"]" * 5000 + b"}"
        said = b'{"messages":[{"role":"user","content":"%s"}]%s}'
        for body, words in (
            (b"{", "not valid JSON"),
            (b"[]", "must be a JSON object"),
            (deep, "nested more than 64 deep"),
            (said % (b"a", b',"temperature":' + b"9" * 5000), "more than 308 digits"),
            (said % (b"a", b',"temperature":NaN'), "not finite"),
            (said % (rb"\ud800", b""), "not valid Unicode"),
            (b"[" + b"0," * 2_000_001, "commas, brackets and escapes"),
            (b"[" + b"0," * 210_000 + b"0]", "more than 200000 values"),
        ):
            answer = await client.post("/v1/chat/completions", content=body, headers=headers)
            assert answer.status_code == 400
            assert words in answer.json()["error"]["message"]
            assert answer.headers["x-should-retry"] == "false"


async def test_the_key_is_good_as_api_key_too(
    gateway: GatewayServer, place: GatewayAddress
) -> None:
    chats = openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=place.key, max_retries=0)
    async with chats:
        asking = chats.chat.completions.create(model="m", messages=CHAT)
        await answered(place, asking, say("yes"))
        assert [model.id async for model in chats.models.list()] == ["policy"]
    async with anthropic.AsyncAnthropic(base_url=gateway.url, api_key=place.key) as messages:
        asking = messages.messages.create(model="m", max_tokens=1, messages=BLOCKS)
        await answered(place, asking, say("yes"))
    # Not every version of Anthropic's client sends its key as a bearer's.
    async with httpx.AsyncClient(base_url=gateway.url) as plain:
        for key, status in ((place.key, 200), ("other", 401)):
            listed = await plain.get("/v1/models", headers={"x-api-key": key})
            assert listed.status_code == status
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="other") as nobody:
        with pytest.raises(openai.AuthenticationError):
            await nobody.models.list()


async def test_a_body_that_is_too_large_is_not_taken_in(
    gateway: GatewayServer, place: GatewayAddress
) -> None:
    port = int(gateway.url.rpartition(":")[2])
    for key, status in ((place.key, b"400"), ("nobody", b"401")):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"POST /v1/responses HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
        writer.write(f"{head}Content-Length: {LARGEST_BYTES + 1}\r\n\r\n".encode())
        # Nothing of the body is sent, so nothing of it can be what the answer waits for.
        line = await asyncio.wait_for(reader.readline(), SOON_S)
        assert line.split()[1] == status
        writer.close()
        await writer.wait_closed()


async def test_bodies_wait_for_their_share_of_the_memory() -> None:
    reader = BodyReader(budget_bytes=100)
    begun, going = asyncio.Event(), asyncio.Event()
    taken: list[int] = []

    async def body(size: int) -> AsyncIterator[bytes]:
        taken.append(size)
        begun.set()
        await going.wait()
        yield b"{" + b" " * (size - 2) + b"}"

    reads = [
        asyncio.ensure_future(reader.read(body(size), length=str(size), read=len))
        for size in (60, 50, 40)
    ]
    await begun.wait()
    for _ in range(9):
        await asyncio.sleep(0)
    assert taken == [60], "the second waits for room, and the third for its turn"
    going.set()
    async with asyncio.timeout(SOON_S):
        assert await asyncio.gather(*reads) == [0, 0, 0]
    assert taken == [60, 50, 40]
    reads = [asyncio.ensure_future(reader.read(body(60), length=None, read=len))]
    with pytest.raises(BadRequest, match="has 999999999 bytes"):
        await reader.read(body(1), length="999999999", read=len)
    reads[0].cancel()
    await asyncio.gather(*reads, return_exceptions=True)


# -- the desk -------------------------------------------------------------------------------------


def asked(*texts: str) -> ChatRequest:
    return ChatRequest(messages=tuple(Message("user", text) for text in texts))


async def test_a_client_that_asks_again_gets_the_answer_to_its_first_question() -> None:
    desk = GatewaySession()
    first = asyncio.ensure_future(desk.ask(asked("a")))
    question = await asyncio.wait_for(desk.next(), SOON_S)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert question.abandoned
    again = asyncio.ensure_future(desk.ask(asked("a")))
    await asyncio.sleep(0)
    assert not question.abandoned
    question.answer(say("yes"))
    assert (await asyncio.wait_for(again, SOON_S))[1].text == "yes"
    other = asyncio.ensure_future(desk.ask(asked("a")))
    assert await asyncio.wait_for(desk.next(), SOON_S) is not question
    other.cancel()


async def test_a_client_that_missed_its_answer_gets_it() -> None:
    desk = GatewaySession()
    first = asyncio.ensure_future(desk.ask(asked("a")))
    question = await asyncio.wait_for(desk.next(), SOON_S)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    question.answer(say("yes"))
    assert (await asyncio.wait_for(desk.ask(asked("a")), SOON_S))[1].text == "yes"


@pytest.mark.parametrize("how", ["gone", "header", "key"])
async def test_a_retry_with_a_previous_response_is_no_second_turn(how: str) -> None:
    desk = GatewaySession()
    first = asyncio.ensure_future(desk.ask(asked("a")))
    (await asyncio.wait_for(desk.next(), SOON_S)).answer(say("yes"))
    _, answer = await first
    more = replace(asked("b"), after=answer.id, key="k" if how == "key" else "")
    asking = asyncio.ensure_future(desk.ask(more))
    question = await asyncio.wait_for(desk.next(), SOON_S)
    if how == "gone":
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    question.answer(say("no"))
    again = replace(more, is_retry=how == "header")
    _, repeated = await asyncio.wait_for(desk.ask(again), SOON_S)
    assert (repeated.text, repeated.id, desk.turns) == ("no", "1", 2)
    # With other content, or not as a retry, it is a turn of its own.
    for other in (replace(again, request=TurnRequest(max_tokens=3)), replace(more, key="")):
        asking = asyncio.ensure_future(desk.ask(other))
        taken = await asyncio.wait_for(desk.next(), SOON_S)
        assert taken is not question
        taken.answer(say("else"))
        await asking


@pytest.mark.parametrize("is_retry", [True, False])
async def test_clients_that_give_up_at_a_time_get_answers_of_their_own(is_retry: bool) -> None:
    desk = GatewaySession()
    asking = [asyncio.ensure_future(desk.ask(asked("a"))) for _ in range(3)]
    taken = await asyncio.wait_for(desk.next(), SOON_S)
    stays = asking.pop()
    for one in asking:
        one.cancel()
    await asyncio.gather(*asking, return_exceptions=True)
    again = [
        asyncio.ensure_future(desk.ask(replace(asked("a"), is_retry=is_retry))) for _ in asking
    ]
    await asyncio.sleep(0)
    taken.answer(say("0"))
    for number in (1, 2):
        (await asyncio.wait_for(desk.next(), SOON_S)).answer(say(str(number)))
    texts = [(await one)[1].text for one in (*again, stays)]
    assert texts == ["0", "1", "2"]


async def test_a_client_says_by_a_header_that_it_asks_again(
    gateway: GatewayServer, place: GatewayAddress
) -> None:
    async with httpx.AsyncClient(base_url=place.url, timeout=SOON_S) as client:
        body = {"messages": [{"role": "user", "content": "a"}]}
        asking = asyncio.ensure_future(client.post("/v1/chat/completions", json=body))
        (await asyncio.wait_for(place.desk.next(), SOON_S)).answer(say("yes"))
        first = await asking
        retried = {"x-stainless-retry-count": "1"}
        again = await client.post("/v1/chat/completions", json=body, headers=retried)
        assert again.json() == first.json()
    assert place.desk.turns == 1


async def test_a_refused_question_is_refused_again_and_costs_nothing() -> None:
    desk = GatewaySession()
    asking = asyncio.ensure_future(desk.ask(asked("a")))
    (await asyncio.wait_for(desk.next(), SOON_S)).refuse("no such thing")
    for _ in range(2):
        with pytest.raises(BadRequest, match="no such thing"):
            await asking
        asking = asyncio.ensure_future(desk.ask(asked("a")))
    await asyncio.gather(asking, return_exceptions=True)
    assert desk.turns == 0


async def test_instructions_are_those_of_the_last_request() -> None:
    desk = GatewaySession()
    before = ""
    shown: list[list[str]] = []
    for turn, instructions in enumerate(("x", "x", "y", "")):
        told = replace(asked(f"q{turn}"), instructions=instructions, after=before)
        asking = asyncio.ensure_future(desk.ask(told))
        question = await asyncio.wait_for(desk.next(), SOON_S)
        after, new = question.node.continuation()
        shown.append([str(after), *(message.text for message in new)])
        question.answer(say(f"a{turn}"))
        before = (await asking)[1].id
    assert shown == [
        ["None", "x", "q0"],
        ["0", "q1"],
        ["None", "y", "q0", "a0", "q1", "a1", "q2"],
        ["None", "q0", "a0", "q1", "a1", "q2", "a2", "q3"],
    ]


async def test_a_question_nobody_waits_for_is_not_taken() -> None:
    desk = GatewaySession()
    gone = asyncio.ensure_future(desk.ask(asked("a")))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    stays = asyncio.ensure_future(desk.ask(asked("b")))
    question = await asyncio.wait_for(desk.next(), SOON_S)
    assert question.messages == asked("b").messages
    question.answer(say("yes"))
    await stays


async def test_a_closed_desk_refuses_who_waits_and_who_comes() -> None:
    desk = GatewaySession()
    waiting = asyncio.ensure_future(desk.ask(asked("a")))
    taken = asyncio.ensure_future(desk.ask(asked("b")))
    await asyncio.wait_for(desk.next(), SOON_S)
    desk.close("over")
    for task in (waiting, taken):
        with pytest.raises(GatewaySessionClosed, match="over"):
            await asyncio.wait_for(task, SOON_S)
    with pytest.raises(GatewaySessionClosed, match="over"):
        await desk.ask(asked("c"))
