"""The gateway, asked by the official clients: three protocols, plain and streamed; refusals.

What is answered here is scripted; episodes that ask are in test_blackbox.py.

Mutants seen caught: calls not compared; an equal conversation taken for one that goes on; a
question nobody waits for taken; a taken one not refused at the end; API keys of Anthropic's clients
not read; a wrong reason to stop; calls of one message apart or lost; calls of a stream under one
number.
"""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import anthropic
import httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.env import Action, call, say
from agentrl.gateway import Asked, BadRequest, Desk, Gateway
from agentrl.gateway.anthropic import Messages
from agentrl.gateway.chat import Chat
from agentrl.gateway.desk import DeskClosed
from agentrl.gateway.dialogue import Dialect, continuation
from agentrl.gateway.responses import Responses
from agentrl.gateway.server import Place
from agentrl.message import Image, Message, ToolCall

SOON_S = 60.0
PIXEL = b"\x89PNG\r\n\x1a\n"
URL = f"data:image/png;base64,{base64.b64encode(PIXEL).decode()}"
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"code": {"type": "string"}}}
FUNCTION: dict[str, Any] = {"name": "python", "description": "Run it.", "parameters": SCHEMA}
TOOL = {"type": "function", "function": FUNCTION}
BOTH = Action("Let me see.", (ToolCall("call_7", "python", {"code": "1 + 1", "é": [1]}),))


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    opened = await Gateway.open()
    yield opened
    await opened.close()


@pytest.fixture
def place(gateway: Gateway) -> Place:
    return gateway.place()


@pytest.fixture
async def chats(place: Place) -> AsyncIterator[openai.AsyncOpenAI]:
    url = f"{place.url}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="any", max_retries=0) as client:
        yield client


@pytest.fixture
async def messages(place: Place) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=place.url, api_key="any", max_retries=0) as client:
        yield client


async def answered(place: Place, asking: Awaitable[Any], *actions: Action) -> tuple[Any, Asked]:
    """Answer questions in turn; return what the client found, and the last question."""
    task = asyncio.ensure_future(asking)
    asked: Asked | None = None
    async with asyncio.timeout(SOON_S):
        for action in actions:
            question = await place.desk.next()
            asked = question.asked
            question.answer(action)
        found = await task
    assert asked is not None
    return found, asked


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


async def test_chat_completions(place: Place, chats: openai.AsyncOpenAI) -> None:
    asking = chats.chat.completions.create(model="m", messages=CHAT, tools=[TOOL])  # pyright: ignore
    found, asked = await answered(place, asking, BOTH)
    assert asked.messages == CONVERSATION
    assert asked.tools == (TOOL,)
    (choice,) = found.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me see."
    (made,) = choice.message.tool_calls
    assert (made.id, made.function.name) == ("call_7", "python")
    assert json.loads(made.function.arguments) == {"code": "1 + 1", "é": [1]}
    assert found.model == "m"
    plain = chats.chat.completions.create(model="m", messages=CHAT[:1])
    found, _ = await answered(place, plain, say("Hello"))
    assert found.choices[0].message.content == "Hello"
    assert found.choices[0].finish_reason == "stop"
    assert not found.choices[0].message.tool_calls


async def test_chat_completions_as_a_stream(place: Place, chats: openai.AsyncOpenAI) -> None:
    async def listen() -> Any:
        async with chats.chat.completions.stream(model="m", messages=CHAT) as stream:
            return await stream.get_final_completion()

    found, _ = await answered(place, listen(), BOTH)
    (choice,) = found.choices
    assert (choice.message.content, choice.finish_reason) == ("Let me see.", "tool_calls")
    (made,) = choice.message.tool_calls
    assert (made.id, made.function.name) == ("call_7", "python")
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


async def test_responses(place: Place, chats: openai.AsyncOpenAI) -> None:
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
    assert (made.call_id, made.name) == ("call_7", "python")
    assert json.loads(made.arguments) == BOTH.tool_calls[0].arguments
    output = {"type": "function_call_output", "call_id": "call_7", "output": "2"}
    asking = chats.responses.create(
        model="m",
        previous_response_id=found.id,
        input=[output],  # pyright: ignore
    )
    _, asked = await answered(place, asking, say("So it is."))
    own = Message("assistant", "Let me see.", tool_calls=BOTH.tool_calls)
    assert asked.messages == (*CONVERSATION, own, Message("tool", "2", tool_call_id="call_7"))


async def test_responses_as_a_stream(place: Place, chats: openai.AsyncOpenAI) -> None:
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


async def test_messages(place: Place, messages: anthropic.AsyncAnthropic) -> None:
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
    assert (use.id, use.name, use.input) == ("call_7", "python", BOTH.tool_calls[0].arguments)
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


async def test_messages_as_a_stream(place: Place, messages: anthropic.AsyncAnthropic) -> None:
    async def listen() -> Any:
        async with messages.messages.stream(model="m", max_tokens=9, messages=BLOCKS) as stream:
            return await stream.get_final_message()

    found, _ = await answered(place, listen(), BOTH)
    text, use = found.content
    assert (text.text, found.stop_reason) == ("Let me see.", "tool_use")
    assert (use.id, use.name, use.input) == ("call_7", "python", BOTH.tool_calls[0].arguments)


# -- what programs repeat --------------------------------------------------------------------------

TWO = Action(
    "Both.", (ToolCall("call_1", "f", {"a": 1}), ToolCall("call_2", "g", {"b": ["x", None]}))
)
ANSWERED = (
    Message("tool", "one", tool_call_id="call_1"),
    Message("tool", "two", tool_call_id="call_2"),
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
    place: Place,
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
    assert continuation([Message("user", "Go"), TWO.message], asked.messages) == ANSWERED


# -- refusals -------------------------------------------------------------------------------------

REFUSED: list[tuple[Dialect, dict[str, Any], str]] = [
    (Chat(), {}, "lacks 'messages'"),
    (Chat(), {"messages": []}, "is empty"),
    (Chat(), {"messages": "hi"}, "is str, wanted list"),
    (Chat(), {"messages": ["hi"]}, "list of objects"),
    (Chat(), {"messages": [{"role": "robot", "content": ""}]}, "role is 'robot'"),
    (Chat(), {"messages": [{"role": "tool", "content": ""}]}, "lacks 'tool_call_id'"),
    (Chat(), {"messages": CHAT, "n": 2}, "'n' of the request is 2, and only 1"),
    (Chat(), {"messages": CHAT, "tools": [{"type": "web_search"}]}, "only functions"),
    (
        Chat(),
        {"messages": [{"role": "user", "content": [{"type": "audio"}]}]},
        "of type 'audio'",
    ),
    (
        Chat(),
        {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}],
                }
            ]
        },
        "nothing is fetched",
    ),
    (
        Chat(),
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
    (Responses(), {"input": []}, "is empty"),
    (Responses(), {"input": [{"type": "file"}]}, "of type 'file'"),
    (Responses(), {"input": "hi", "background": True}, "only False is answered"),
    (Responses(), {"input": "hi", "tools": [{"type": "mcp"}]}, "only functions"),
    (Messages(), {"messages": []}, "is empty"),
    (Messages(), {"messages": [{"role": "tool", "content": ""}]}, "role is 'tool'"),
    (Messages(), {"messages": [{"role": "user", "content": [{"type": "x"}]}]}, "of type 'x'"),
    (Messages(), {"messages": BLOCKS, "tools": [{"type": "bash_1", "name": "b"}]}, "own"),
]


@pytest.mark.parametrize(("protocol", "body", "words"), REFUSED)
def test_what_cannot_be_answered_is_refused_with_a_reason(
    protocol: Dialect, body: dict[str, Any], words: str
) -> None:
    with pytest.raises(BadRequest, match=words):
        protocol.read(body)


async def test_clients_see_refusals_as_their_own_errors(
    gateway: Gateway,
    place: Place,
    chats: openai.AsyncOpenAI,
    messages: anthropic.AsyncAnthropic,
) -> None:
    with pytest.raises(openai.BadRequestError, match="only 1 is answered"):
        await chats.chat.completions.create(model="m", messages=CHAT, n=3)
    with pytest.raises(anthropic.BadRequestError, match="is empty"):
        await messages.messages.create(model="m", max_tokens=1, messages=[])
    with pytest.raises(openai.BadRequestError, match="no answer of this episode's"):
        await chats.responses.create(model="m", input="x", previous_response_id="resp_1")
    asking = asyncio.ensure_future(chats.chat.completions.create(model="m", messages=CHAT))
    await asyncio.wait_for(place.desk.next(), SOON_S)
    gateway.free(place)
    with pytest.raises(openai.APIStatusError, match="this episode is over") as over:
        await asking
    assert over.value.status_code == 410
    with pytest.raises(openai.AuthenticationError, match="no running episode has this key"):
        await chats.chat.completions.create(model="m", messages=CHAT)


async def test_bodies_that_are_none(gateway: Gateway, place: Place) -> None:
    async with httpx.AsyncClient(base_url=gateway.url) as client:
        headers = {"Authorization": f"Bearer {place.key}"}
        for body, words in ((b"{", "no JSON"), (b"[]", "must be a JSON object")):
            answer = await client.post("/v1/chat/completions", content=body, headers=headers)
            assert answer.status_code == 400
            assert words in answer.json()["error"]["message"]
            assert answer.headers["x-should-retry"] == "false"


async def test_the_key_is_good_as_api_key_too(gateway: Gateway, place: Place) -> None:
    chats = openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=place.key, max_retries=0)
    async with chats:
        asking = chats.chat.completions.create(model="m", messages=CHAT)
        await answered(place, asking, say("yes"))
        assert [model.id async for model in chats.models.list()] == ["policy"]
    async with anthropic.AsyncAnthropic(base_url=gateway.url, api_key=place.key) as messages:
        asking = messages.messages.create(model="m", max_tokens=1, messages=BLOCKS)
        await answered(place, asking, say("yes"))
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="other") as nobody:
        with pytest.raises(openai.AuthenticationError):
            await nobody.models.list()


# -- the desk -------------------------------------------------------------------------------------


def asked(*texts: str) -> Asked:
    return Asked(messages=tuple(Message("user", text) for text in texts))


async def test_a_client_that_asks_again_gets_the_answer_to_its_first_question() -> None:
    desk = Desk()
    first = asyncio.ensure_future(desk.ask(asked("a")))
    question = await asyncio.wait_for(desk.next(), SOON_S)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert question.abandoned
    again = asyncio.ensure_future(desk.ask(asked("a")))
    await asyncio.sleep(0)
    assert not question.abandoned
    question.answer(say("yes"))
    assert (await asyncio.wait_for(again, SOON_S))[1] == say("yes")
    other = asyncio.ensure_future(desk.ask(asked("a")))
    assert await asyncio.wait_for(desk.next(), SOON_S) is not question
    other.cancel()


async def test_a_client_that_missed_its_answer_gets_it() -> None:
    desk = Desk()
    first = asyncio.ensure_future(desk.ask(asked("a")))
    question = await asyncio.wait_for(desk.next(), SOON_S)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    question.answer(say("yes"))
    assert (await asyncio.wait_for(desk.ask(asked("a")), SOON_S))[1] == say("yes")


async def test_a_question_nobody_waits_for_is_not_taken() -> None:
    desk = Desk()
    gone = asyncio.ensure_future(desk.ask(asked("a")))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    stays = asyncio.ensure_future(desk.ask(asked("b")))
    question = await asyncio.wait_for(desk.next(), SOON_S)
    assert question.asked == asked("b")
    question.answer(say("yes"))
    await stays


async def test_a_closed_desk_refuses_who_waits_and_who_comes() -> None:
    desk = Desk()
    waiting = asyncio.ensure_future(desk.ask(asked("a")))
    taken = asyncio.ensure_future(desk.ask(asked("b")))
    await asyncio.wait_for(desk.next(), SOON_S)
    desk.close("over")
    for task in (waiting, taken):
        with pytest.raises(DeskClosed, match="over"):
            await asyncio.wait_for(task, SOON_S)
    with pytest.raises(DeskClosed, match="over"):
        await desk.ask(asked("c"))


# -- conversations --------------------------------------------------------------------------------

MESSAGES = st.lists(
    st.builds(Message, st.sampled_from(["user", "assistant"]), st.text("ab", max_size=2)),
    min_size=1,
    max_size=4,
)


@given(MESSAGES, MESSAGES)
def test_what_goes_on_is_what_was_added(known: list[Message], more: list[Message]) -> None:
    assert continuation(known, [*known, *more]) == tuple(more)
    assert continuation(known, known) is None
    changed = [*known[:-1], Message("user", "changed")]
    assert continuation(known, [*changed, *more]) is None


def test_a_call_may_be_spelt_differently_and_not_changed() -> None:
    made = call("f", a=1, b="x").message
    other = Message("assistant", "", tool_calls=(ToolCall("call_0", "f", {"b": "x", "a": 1}),))
    more = Message("tool", "ok", tool_call_id="call_0")
    assert continuation([made], [other, more]) == (more,)
    for wrong in (call("f", a=2, b="x").message, call("g", a=1, b="x").message, say("f").message):
        assert continuation([made], [wrong, more]) is None
