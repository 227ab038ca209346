"""An endpoint as the policy: what it is sent, what becomes of its answers, and of its failures."""

import asyncio
import functools
import http.server
import itertools
import json
import ssl
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import agentrl
from agentrl.authoring.tool_env import ToolEnv
from agentrl.chat.call_json import CALLS_MAX
from agentrl.config.load import load_config
from agentrl.errors import ConfigError, EngineError
from agentrl.evaluation.endpoint import EndpointChat, EndpointEngine, HttpEndpoint
from agentrl.evaluation.endpoint.chat import conversation
from agentrl.evaluation.endpoint.engine import TURN_LIMITS
from agentrl.evaluation.reports import StoredReport, compare_reports, read_report
from agentrl.message import Image, Message, ToolCall
from agentrl.policy import GenerateRequest, PolicyEngine, Sampling
from agentrl.run import build
from agentrl.run.evaluate import evaluate
from agentrl.runtime import http_endpoint
from agentrl.runtime.http_endpoint import (
    ANSWER_LIMITS,
    EndpointUnavailableError,
    HttpEndpointClient,
    RetryPolicy,
    parse_wait,
)
from tests.support.commands import agentrl as agentrl_cli
from tests.support.doubles import double, doubles, gold
from tests.support.watchdog import watched

ENDPOINT = HttpEndpoint(url="http://model.test/v1", model="m", retries=2)
TOOLS = ({"type": "function", "function": {"name": "double", "parameters": {}}},)
CHAT = EndpointChat()
Handler = Callable[[httpx.Request], httpx.Response]


def said(message: dict[str, Any], finish: Any = "stop") -> httpx.Response:
    return httpx.Response(200, json={"choices": [{"message": message, "finish_reason": finish}]})


def call(arguments: str, id: str = "c1") -> dict[str, Any]:
    function = {"name": "double", "arguments": arguments}
    return {"id": id, "type": "function", "function": function}


def engine(handler: Handler, endpoint: HttpEndpoint = ENDPOINT) -> EndpointEngine:
    return EndpointEngine(endpoint, first_wait_s=0.0, transport=httpx.MockTransport(handler))


def request(*messages: Message, number: int = 0, **changes: Any) -> GenerateRequest:
    opening = CHAT.opening(messages or (Message("user", "hi"),), TOOLS)
    prompt = tuple(token for part in opening for token in part.token_ids)
    return GenerateRequest(id=f"r{number}", prompt=prompt, max_new_tokens=64, **changes)


async def test_what_is_asked_and_what_comes_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    seen: list[httpx.Request] = []

    def handler(asked: httpx.Request) -> httpx.Response:
        seen.append(asked)
        return said({"role": "assistant", "content": "é\n", "tool_calls": [call('{"n": 2}')]})

    async with engine(handler) as asks:
        assert isinstance(asks, PolicyEngine)
        done = await asks.generate(
            request(seed=2**40 + 3, sampling=Sampling(temperature=0.5, top_p=0.9))
        )
    assert str(seen[0].url) == "http://model.test/v1/chat/completions"
    assert seen[0].headers["authorization"] == "Bearer k"
    assert json.loads(seen[0].content) == {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "tools": list(TOOLS),
        "temperature": 0.5,
        "top_p": 0.9,
        "max_tokens": 64,
        "seed": 3,
    }
    assert done.finish == "stop"
    assert done.token_ids[-1] in CHAT.stop_token_ids
    assert len({*map(str, done.logprobs)}) == 1, "it has none, and says so"
    assert str(done.logprobs[0]) == "nan"
    action = CHAT.parse(done.token_ids)
    assert (action.text, action.tool_calls) == ("é\n", (ToolCall("c1", "double", {"n": 2}),))


async def test_half_a_surrogate_pair_is_asked_as_a_question_mark() -> None:
    """As the chat format tells it to a model of this process."""

    def handler(asked: httpx.Request) -> httpx.Response:
        assert json.loads(asked.content)["messages"][0]["content"] == "half ? of é"
        assert asked.headers["content-type"] == "application/json"
        return said({"role": "assistant", "content": "a"})

    async with engine(handler) as asks:
        done = await asks.generate(request(Message("user", "half \ud800 of é")))
    assert done.finish == "stop"


async def test_a_turn_that_was_cut_short_is_closed_by_the_reply() -> None:
    async with engine(lambda asked: said({"content": "half of"}, "length")) as asks:
        asked = request()
        done = await asks.generate(asked)
    assert done.finish == "length"
    assert CHAT.parse(done.token_ids).text == "half of"
    reply = CHAT.reply([Message("user", "go on")], ended=False)
    assert [part.source for part in reply] == ["template", "tool"]
    whole = asked.prompt + done.token_ids + reply[0].token_ids + reply[1].token_ids
    assert [m["content"] for m in conversation(whole)[0]] == ["hi", "half of", "go on"]


def test_images_go_as_data_urls() -> None:
    message = Message("user", ("look", Image(b"\x01\x02", "image/webp")))
    opening = CHAT.opening([message], ())
    (sent,), tools = conversation(opening[0].token_ids)
    assert sent["content"][1] == {
        "type": "image_url",
        "image_url": {"url": "data:image/webp;base64,AQI="},
    }
    assert tools == []


async def test_a_malformed_call_is_answered_and_can_be_sent_back() -> None:
    calls = [call("{broken", "x"), call("[1]", "y"), call('{"n": 1}', "z")]
    async with engine(lambda asked: said({"tool_calls": calls})) as asks:
        asked = request()
        done = await asks.generate(asked)
    action = CHAT.parse(done.token_ids)
    assert len(action.malformed) == 2
    assert "{broken" in action.malformed[0]
    assert [one.id for one in action.tool_calls] == ["z"]
    answers = [
        Message("tool", "no", tool_call_id="malformed_0"),
        Message("tool", "2", tool_call_id="z"),
    ]
    reply = CHAT.reply(answers, ended=True)
    messages, _ = conversation(asked.prompt + done.token_ids + reply[0].token_ids)
    # Every call is answered once, and its arguments can be read by a template.
    assert [m["tool_call_id"] for m in messages if m["role"] == "tool"] == ["x", "z", "y"]
    assert all(json.loads(c["function"]["arguments"]) for c in messages[1]["tool_calls"])


def test_tools_that_change_are_the_last_ones_told() -> None:
    opening = CHAT.opening([Message("user", "hi")], TOOLS)
    reply = CHAT.reply([Message("user", "now these")], ended=True, tools=())
    assert conversation(opening[0].token_ids)[1] == list(TOOLS)
    assert conversation(opening[0].token_ids + reply[0].token_ids)[1] == []


@pytest.mark.parametrize("first", [429, 500, 503, 408, "broken"])
async def test_what_may_pass_is_tried_again(first: int | str) -> None:
    answers = iter([first, first, 200])

    def handler(asked: httpx.Request) -> httpx.Response:
        match next(answers):
            case 200:
                return said({"content": "yes"})
            case "broken":
                raise httpx.ReadError("cut")
            case status:
                return httpx.Response(int(status), headers={"retry-after": "0.01"}, text="busy")

    async with engine(handler) as asks:
        assert CHAT.parse((await asks.generate(request())).token_ids).text == "yes"


async def test_an_endpoint_that_goes_on_failing_is_told_now_and_then(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_endpoint, "_warned_s", {})
    answers = iter([500, 200, *[500] * 2, 200, *[500] * 2, 200])

    def handler(asked: httpx.Request) -> httpx.Response:
        status = next(answers)
        return said({"content": "yes"}) if status == 200 else httpx.Response(status, text="oops")

    async with engine(handler) as asks:
        await asks.generate(request())
        assert not caplog.records, "what passes at once is no news"
        for _ in range(2):
            await asks.generate(request())
    (record,) = caplog.records
    assert "m at http://model.test/v1: 500 oops; try 3 follows in " in record.getMessage()


@pytest.mark.parametrize(
    ("answer", "kind", "text"),
    [
        (httpx.Response(503, text="overloaded"), EngineError, "after 3 tries: 503 overloaded"),
        (httpx.Response(400, text="too long"), EngineError, "400 too long"),
        (httpx.Response(401, text="who?"), ConfigError, "the key is wrong.*OPENAI_API_KEY"),
        (httpx.Response(404, text="no m"), ConfigError, "the address or the model is wrong"),
        (httpx.Response(200, text=" <html>"), EngineError, ".<html>., a page and no JSON.*/v1"),
        (httpx.Response(200, text="hm"), EngineError, ".hm., which cannot be parsed: broken JSON"),
        (httpx.Response(200, json={"choices": []}), EngineError, "no message"),
        (httpx.Response(200, json=[]), EngineError, "no message"),
        (said({"content": 5}), EngineError, "no message"),
        (said({"content": [{"type": "image"}]}), EngineError, "no message"),
        (said({"content": ["I"]}), EngineError, "no message"),
        (said({"tool_calls": [{"function": {"name": 5}}]}), EngineError, "returned tool_calls"),
        (said({"tool_calls": [{"type": "custom"}]}), EngineError, "must have a function"),
        (said({"tool_calls": {"a": 1}}), EngineError, "returned tool_calls"),
        (httpx.Response(402, text="pay"), ConfigError, "the account has no credit: 402 pay"),
        (
            httpx.Response(429, json={"error": {"code": "insufficient_quota"}}),
            ConfigError,
            "the account has no credit: 429",
        ),
        (
            httpx.Response(301, headers={"location": "https://new.test/v1/chat/completions"}),
            ConfigError,
            r"has moved \(301\).*set the URL to .*: https://new.test/v1",
        ),
        (
            httpx.Response(429, headers={"retry-after": "601"}),
            EngineError,
            "asks for a wait of 601 s, but the longest is 600 s",
        ),
        (
            httpx.Response(200, json={"error": {"message": "upstream"}}),
            EngineError,
            "answered with an error: .*upstream",
        ),
        (
            httpx.Response(200, json={"choices": [{"error": {"code": 502}, "message": {}}]}),
            EngineError,
            "answered with an error: .*502",
        ),
        (said({"content": "I"}, "content_filter"), EngineError, "withheld a turn .*content_filter"),
        (httpx.Response(200, content=b"[" * 10**5), EngineError, "nested more than 64 deep"),
    ],
)
async def test_what_will_not_pass_is_told(
    answer: httpx.Response, kind: type[Exception], text: str
) -> None:
    async with engine(lambda asked: answer) as asks:
        with pytest.raises(kind, match=text):
            await asks.generate(request())


@pytest.mark.parametrize("finish", ["error", "abort", None, "insufficient_system_resource", 5, {}])
@pytest.mark.parametrize("content", ["4", ""])
async def test_what_something_else_broke_off_is_no_answer(finish: Any, content: str) -> None:
    """Kills: half a message scored, or trained on as a verdict."""
    async with engine(lambda asked: said({"content": content}, finish)) as asks:
        with pytest.raises(EngineError, match=rf"broke off a message: .* is {finish!r}"):
            await asks.generate(request())


@pytest.mark.parametrize("finish", ["stop", "tool_calls", "function_call", "eos_token"])
async def test_an_end_of_any_server_is_one(finish: str) -> None:
    calls = [{"id": None, "function": {"name": "double", "arguments": None}}]
    async with engine(lambda asked: said({"tool_calls": calls}, finish)) as asks:
        turn = await asks.generate(request())
    assert (turn.finish, CHAT.parse(turn.token_ids).tool_calls[0].id) == ("stop", "call_0")


@pytest.mark.parametrize(
    ("retry_after", "seconds"),
    [
        ("3", 3.0),
        ("0.5", 0.5),
        ("Thu, 01 Jan 1970 00:01:45 GMT", 5.0),
        ("Thu, 01 Jan 1970 00:00:01 GMT", 0.0),
        ("", None),
        ("soon", None),
        ("-1", None),
        ("1e9", None),
        ("9" * 400, None),
        ("٣", None),
    ],
)
def test_the_wait_that_a_server_asks_for(retry_after: str, seconds: float | None) -> None:
    assert parse_wait(retry_after, now_s=100.0) == seconds


async def test_the_wait_that_a_server_asks_for_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a wait that is cut at what our own waits grow to."""
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    patience = RetryPolicy(first_wait_s=40.0, retries=3)
    monkeypatch.setattr(http_endpoint.asyncio, "sleep", sleep)
    for asked_s in (120.0, None, 1.0):
        await patience.wait(EndpointUnavailableError("busy", asked_s=asked_s), of=ENDPOINT)
    assert waits == [120.0, 60.0, 60.0]


@pytest.mark.parametrize("key", ["sk-SECRET\n", " ", "sk-SEC\nRET", "sk-SECRÉT"])
def test_a_key_that_no_request_can_send_is_told_without_it(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(ConfigError, match="key in the variable OPENAI_API_KEY has a") as told:
        engine(lambda asked: said({"content": "yes"}))
    assert "SEC" not in str(told.value)


async def test_a_refusal_that_repeats_the_key_is_shown_without_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-SECRET")

    def handler(asked: httpx.Request) -> httpx.Response:
        return httpx.Response(401, text=f"no such key: {asked.headers['authorization']}")

    async with engine(handler) as asks:
        with pytest.raises(ConfigError, match=r"no such key: Bearer \[the key\]"):
            await asks.generate(request())


@pytest.mark.parametrize(
    "url",
    ["http://me:SECRET@model.test/v1", "http://model.test/v1?key=SECRET", "http://model.test/v1#a"],
)
def test_a_url_that_paths_cannot_be_appended_to_is_told(url: str) -> None:
    with pytest.raises(ConfigError, match=r"at model\.test has a user name, a query") as told:
        HttpEndpoint(url=url, model="m")
    assert "SECRET" not in str(told.value)


async def test_a_certificate_that_nobody_signed_is_not_asked_again() -> None:
    calls = itertools.count()

    def handler(asked: httpx.Request) -> httpx.Response:
        next(calls)
        cause = ssl.SSLCertVerificationError(1, "verify failed")
        cause.verify_message = "self-signed certificate"
        raise httpx.ConnectError("tls") from cause

    async with engine(handler) as asks:
        with pytest.raises(
            ConfigError, match=r"trusted: self-signed certificate; set SSL_CERT_FILE"
        ):
            await asks.generate(request())
    assert next(calls) == 1


class Flood(httpx.AsyncByteStream):
    """A body without end; counts the bytes that were taken of it."""

    def __init__(self) -> None:
        self.taken = 0

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        while True:
            self.taken += 2**20
            yield b"x" * 2**20


@pytest.mark.parametrize(
    ("status", "headers", "wrong", "most"),
    [
        (200, {}, "an answer of more than 67108864 bytes", ANSWER_LIMITS.text_bytes + 2**20),
        (200, {"content-length": "9" * 5_000}, "an answer of 9{30} bytes", 0),
        (200, {"content-length": "67108865"}, "an answer of 67108865 bytes", 0),
        (400, {}, "refused a request: 400 x{300}$", 2**20),
        (503, {}, "did not answer after 3 tries: 503 x", 3 * 2**20),
    ],
)
@watched
async def test_no_more_than_the_limit_is_received(
    status: int, headers: dict[str, str], wrong: str, most: int
) -> None:
    flood = Flood()
    answer = functools.partial(httpx.Response, status, headers=headers, stream=flood)
    answers = httpx.MockTransport(lambda asked: answer())
    client = HttpEndpointClient(ENDPOINT, first_wait_s=0.0, transport=answers)
    with pytest.raises(EngineError, match=wrong):
        await client.ask("completions", {})
    await client.close()
    assert flood.taken <= most


@watched
async def test_a_turn_is_received_up_to_its_limit() -> None:
    room = TURN_LIMITS.text_bytes - len(said({"content": ""}).content)
    async with engine(lambda asked: said({"content": "x" * room})) as asks:
        turn = await asks.generate(request())
        assert CHAT.parse(turn.token_ids).text == "x" * room
    async with engine(lambda asked: said({"content": "x" * (room + 1)})) as asks:
        with pytest.raises(
            EngineError, match=r"an answer of 1048577 bytes, but the limit is 1048576"
        ):
            await asks.generate(request())
    flood = Flood()
    async with engine(lambda asked: httpx.Response(200, stream=flood)) as asks:
        with pytest.raises(EngineError, match=r"an answer of more than 1048576 bytes"):
            await asks.generate(request())
    assert flood.taken <= 2 * TURN_LIMITS.text_bytes


async def events_of(stream: httpx.AsyncByteStream) -> list[Any]:
    headers = {"content-type": "text/event-stream"}
    answers = httpx.MockTransport(lambda asked: httpx.Response(200, headers=headers, stream=stream))
    client = HttpEndpointClient(ENDPOINT, transport=answers)
    try:
        return [event async for event in client.events("completions", {})]
    finally:
        await client.close()


async def test_an_event_without_end_is_not_received() -> None:
    flood = Flood()
    with pytest.raises(EngineError, match="an event of more than 67108864 bytes"):
        await events_of(flood)
    assert flood.taken <= ANSWER_LIMITS.text_bytes + 2**20


@pytest.mark.parametrize("end", ["\n\n", "\r\n\r\n"])
@pytest.mark.parametrize("size", [1, 3, 1000])
async def test_an_event_ends_where_its_line_does(end: str, size: int) -> None:
    """A text may hold other ends of lines as they are."""
    told = [{"text": "a\u2028b\x85"}, {"text": "é"}]
    lines = [f"data: {json.dumps(event, ensure_ascii=False)}{end}" for event in told]
    text = "".join([": hello\n", *lines, f"data: [DONE]{end}"]).encode()

    class Parts(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncGenerator[bytes]:
            for at in range(0, len(text), size):
                yield text[at : at + size]

    assert await events_of(Parts()) == told


async def test_abort_pause_and_close_end_what_is_asked() -> None:
    begun = asyncio.Semaphore(0)

    class Hangs(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            begun.release()
            await asyncio.Event().wait()
            raise AssertionError

    asks = EndpointEngine(ENDPOINT, transport=Hangs())
    running = [asyncio.create_task(asks.generate(request(number=n))) for n in range(2)]
    await begun.acquire()
    await begun.acquire()
    await asks.abort("r0")
    assert (await running[0]).finish == "aborted"
    await asks.pause()
    assert (await running[1]).finish == "aborted"
    held = asyncio.create_task(asks.generate(request(number=2)))
    await asyncio.sleep(0)
    assert begun.locked()
    await asks.resume()
    await begun.acquire()
    held.cancel()
    await asyncio.wait([held])
    last = asyncio.create_task(asks.generate(request(number=2)))
    await begun.acquire()
    await asks.close()
    assert (await last).finish == "aborted"
    with pytest.raises(EngineError, match="closed"):
        await asks.generate(request())


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        ('{"a": ' + "[" * 700 + "]" * 700 + "}", "nested more than 64 deep"),
        ("[" * 9_000, "nested more than 64 deep"),
        ('{"a": ' + "9" * 5_000 + "}", "more than 308 digits"),
        ('{"a": 1e999}', "not finite"),
        ('{"a": "\\ud800"}', "not valid Unicode"),
        ('{"a": "' + "b" * 2**18 + '"}', "the limit is 262144"),
        ("[1]", "must be an object"),
    ],
)
async def test_absurd_arguments_are_a_malformed_call(arguments: str, wrong: str) -> None:
    """The turn goes on, and what the endpoint is sent back of it is short and plain."""
    message = {"content": "so", "tool_calls": [call(arguments), call('{"n": 2}', id="c2")]}
    async with engine(lambda asked: said(message)) as asks:
        done = await asks.generate(request())
    action = CHAT.parse(done.token_ids)
    assert (action.text, action.tool_calls) == ("so", (ToolCall("c2", "double", {"n": 2}),))
    (malformed,) = action.malformed
    assert wrong in malformed
    assert len(malformed) < 1_000
    ((said_again, *_), _) = conversation(done.token_ids)
    (back, _) = said_again["tool_calls"]
    assert json.loads(back["function"]["arguments"]) == {"malformed": arguments}


async def test_a_content_of_parts_is_its_texts() -> None:
    """As Mistral's reasoning models answer."""
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    parts = [thought, {"type": "text", "text": "it "}, {"type": "text", "text": "is"}]
    async with engine(lambda asked: said({"content": parts})) as asks:
        assert CHAT.parse((await asks.generate(request())).token_ids).text == "it is"


@pytest.mark.parametrize(
    ("refusal", "fields"),
    [
        (
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use "
            "'max_completion_tokens' instead.",
            {"max_completion_tokens", "seed"},
        ),
        (
            '{"detail":[{"type":"extra_forbidden","loc":["body","seed"],"msg":"Extra inputs"}]}',
            {"max_tokens"},
        ),
        ("max_tokens is too large", None),
    ],
)
async def test_fields_that_an_endpoint_refuses_go_by_its_names(
    refusal: str, fields: set[str] | None
) -> None:
    """Mutants seen caught: asked with the old name each time; any refusal taken for a field's."""
    asked_for: list[set[str]] = []

    def handler(asked: httpx.Request) -> httpx.Response:
        body = json.loads(asked.content)
        asked_for.append({"max_tokens", "max_completion_tokens", "seed"} & {*body})
        if asked_for[-1] == fields:
            return said({"content": "yes"})
        return httpx.Response(422, text=refusal)

    async with engine(handler) as asks:
        if fields is None:
            with pytest.raises(EngineError, match="refused a request: 422 max_tokens is too large"):
                await asks.generate(request())
            assert asked_for == [{"max_tokens", "seed"}]
            return
        for _ in range(2):
            assert CHAT.parse((await asks.generate(request())).token_ids).text == "yes"
    assert asked_for == [{"max_tokens", "seed"}, fields, fields]


async def test_arguments_may_be_a_value() -> None:
    """As some servers send them."""
    message = {"tool_calls": [{"function": {"name": "double", "arguments": {"n": 2}}}] * 100}
    async with engine(lambda asked: said(message)) as asks:
        action = CHAT.parse((await asks.generate(request())).token_ids)
    assert action.tool_calls[7] == ToolCall("call_7", "double", {"n": 2})
    assert (len(action.tool_calls), len(action.malformed)) == (CALLS_MAX, 1)


async def test_nothing_of_it_trains() -> None:
    async with engine(lambda asked: said({"content": ""})) as asks:
        with pytest.raises(ConfigError, match=r"m at http://model\.test/v1 accepts no weights"):
            await asks.load({}, 1)


@pytest.mark.parametrize(
    ("url", "model"),
    [
        ("localhost:8000", "m"),
        ("http://h/v1", ""),
        ("http://[::1", "m"),
        ("http://h:x/v1", "m"),
        ("http://h:99999/v1", "m"),
        ("http://", "m"),
    ],
)
def test_an_endpoint_is_a_url_and_a_model(url: str, model: str) -> None:
    with pytest.raises(ConfigError, match="--endpoint http"):
        HttpEndpoint(url=url, model=model)


# --- over a socket, with a whole evaluation -------------------------------------------------------

CONFIG = """
env: {{id: "{module}:Doubles"}}
rollout: {{max_turns: 3, concurrency: 8}}
evaluate: {{tasks: 12}}
"""


class Doubles(ToolEnv):
    def __init__(self) -> None:
        super().__init__(
            tasks=doubles, tools=[double], reward=agentrl.rewards.exact_answer, gold=gold
        )


async def answer(request: Request) -> Response:
    """Play with the tool, and forget what it said where that is a multiple of 3."""
    body = await request.json()
    asked = body["messages"][-1]
    assert body["model"] in ("player", "silent")
    assert [tool["function"]["name"] for tool in body["tools"]] == ["double"]
    if asked["role"] != "tool":
        number = int("".join(c for c in asked["content"] if c.isdigit()))
        message: dict[str, Any] = {
            "content": None,
            "tool_calls": [call(json.dumps({"number": number}))],
        }
    else:
        right = int(asked["content"]) % 3 and body["model"] == "player"
        message = {"content": asked["content"] if right else "no idea"}
    return JSONResponse({"choices": [{"message": message, "finish_reason": "stop"}]})


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Serve the player from a thread."""
    app = Starlette(routes=[Route("/v1/chat/completions", answer, methods=["POST"])])
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        thread.join(0.01)
        assert thread.is_alive()
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/v1"
    server.should_exit = True
    thread.join(30)
    assert not thread.is_alive()


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
    path = tmp_path / "doubles.yaml"
    path.write_text(CONFIG.format(module=__name__))
    return path


def test_an_endpoint_is_evaluated_and_kept(url: str, config: Path, tmp_path: Path) -> None:
    out = tmp_path / "kept"
    report = evaluate(config, endpoint=HttpEndpoint(url=url, model="player"), out=out)
    found = json.loads((out / "report.json").read_text())
    assert report.summary()["n"] == 12
    assert report.summary()["failed"] == 0
    tasks = build.build_evaluation_tasks(load_config(config), Doubles())
    passed = sum(int(task.answer) % 3 > 0 for task in tasks)
    assert 0 < passed < 12
    assert report.summary()["pass@1"] == passed / 12
    assert found["about"]["policy"] == f"player at {url}"
    again = evaluate(config, endpoint=HttpEndpoint(url=url, model="player"), out=out, resume=True)
    assert again.summary() == report.summary()
    with pytest.raises(ConfigError, match="evaluation of player at"):
        evaluate(config, endpoint=HttpEndpoint(url=url, model="other"), out=out, resume=True)


def test_the_command_asks_the_endpoint(
    url: str, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = agentrl_cli(capsys, "eval", str(config), "--endpoint", url, "--model", "player")
    assert code == 0
    assert "pass@1" in out


def test_two_endpoints_are_compared(url: str, config: Path, tmp_path: Path) -> None:
    """The policy is what may differ: its name, its model and where it is served."""
    reports: list[StoredReport] = []
    for model in ("player", "silent"):
        out = tmp_path / model
        evaluate(config, endpoint=HttpEndpoint(url=url, model=model), out=out)
        reports.append(read_report(out))
    found = compare_reports(*reports)
    right = sum(sample.reward == 1 for sample in reports[0].samples)
    assert (len(found.gained), len(found.lost)) == (0, right)
    assert right


class Babbler(http.server.BaseHTTPRequestHandler):
    """Answers every request with the next of these texts."""

    said: ClassVar[Iterator[str]]
    texts = (
        *("I should think that is a matter of taste. " * 50, "9" * 5_000, "1e1_000_000_000"),
        *("<answer>" * 25_000, "<answer>1</answer>" * 25_000, "</think>" * 25_000, "x" * 2**20),
        *(f"<answer>{text}</answer>" for text in ("9**9**9**9", "1e1_000_000_000", "nan")),
        *(f"<answer>{text}</answer>" for text in ("(" * 9_000, "1/" * 400 + "0", "\ud800")),
    )

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        body = said({"content": next(Babbler.said)}).content
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def babbling() -> Iterator[str]:
    Babbler.said = itertools.cycle(Babbler.texts)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Babbler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("family", ["polynomial_multiplication", "letter_counting"])
def test_a_model_that_babbles_is_wrong_and_ends_soon(
    babbling: str, tmp_path: Path, family: str
) -> None:
    """No verifier stands still over what it says, and none of it is a fault."""
    path = tmp_path / "babble.yaml"
    tasks = len(Babbler.texts)
    path.write_text(
        f"env: {{id: reasoning/Mix-v0, kwargs: {{families: [{family}], partial_credit: false}}}}\n"
        f"rollout: {{max_turns: 1, concurrency: 4}}\nevaluate: {{tasks: {tasks}}}\n"
    )
    summary = evaluate(path, endpoint=HttpEndpoint(url=babbling, model="m")).summary()
    assert (summary["n"], summary["failed"]) == (tasks, 0)
    assert summary["pass@1"] < 0.5


def test_fewer_tasks_than_are_asked_for_are_said(config: Path) -> None:
    said: list[str] = []
    for wanted in (500, 12):
        loaded = load_config(config, {"evaluate.tasks": wanted})
        build.build_evaluation_tasks(loaded, Doubles(), said.append)
    (line,) = said
    assert "evaluate.tasks is 500" in line
    assert "distinct held-out tasks: all of them are used" in line


@pytest.mark.parametrize("key", ["each.tokens", "total.money"])
def test_what_nobody_counts_cannot_be_bounded(config: Path, key: str) -> None:
    with pytest.raises(ConfigError, match=rf"evaluate\.budget\.{key} is 5"):
        evaluate(config, {f"evaluate.budget.{key}": 5}, endpoint=ENDPOINT)


def test_a_checkpoint_and_an_endpoint_are_two_policies(config: Path) -> None:
    with pytest.raises(ConfigError, match="give only one"):
        evaluate(config, endpoint=ENDPOINT, checkpoint="some")
