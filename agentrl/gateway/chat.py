"""OpenAI's chat completions: `POST /v1/chat/completions`."""

import json
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

from agentrl.env import ToolSchema
from agentrl.gateway.answer import GatewayAnswer
from agentrl.gateway.dialect import (
    ROLES,
    RULES,
    BadRequest,
    Body,
    ChatRequest,
    StreamEvent,
    ToolChoice,
    check_fields,
    check_function,
    check_named,
    content_of,
    field,
    items,
    read_unless_ignored,
    role_of,
    shorten,
    tool_call,
    tool_choice,
    tool_schema,
    turn_request,
)
from agentrl.gateway.images import from_url
from agentrl.message import Image, Message, ToolCall

_LIMITS = ("max_tokens", "max_completion_tokens")
_HEARD = frozenset(
    {
        "messages",
        "tools",
        "tool_choice",
        "model",
        "stream",
        "stop",
        "max_tokens",
        "max_completion_tokens",
    }
)
_ONLY: dict[str, list[Any]] = {
    "n": [1],
    "logprobs": [False],
    "top_logprobs": [0],
    "audio": [],
    "functions": [],
    "function_call": [],
    "parallel_tool_calls": [True],
    "response_format": [{"type": "text"}],
    "modalities": [["text"]],
}


class ChatCompletionsDialect:
    """The protocol of `client.chat.completions.create`."""

    def read(self, body: Body, ignored: Container[str] = ()) -> ChatRequest:
        check_fields(body, heard=_HEARD, only=_ONLY, ignored=ignored)
        messages = items(field(body, "messages", list, of="the request"), of="'messages'")
        if not messages:
            raise BadRequest("'messages' is empty; send at least one message")
        options = body.get("stream_options")
        tools = tuple(map(_tool, items(body.get("tools") or [], of="'tools'")))
        return ChatRequest(
            messages=tuple(_message(message, ignored) for message in messages),
            tools=tools,
            model=str(body.get("model", "")),
            stream=bool(body.get("stream")),
            stream_usage=isinstance(options, Mapping) and bool(options.get("include_usage")),  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
            request=turn_request(
                max_tokens=[read_unless_ignored(body, name, ignored) for name in _LIMITS],
                stop=read_unless_ignored(body, "stop", ignored),
                choice=_choice(read_unless_ignored(body, "tool_choice", ignored), tools),
            ),
        )

    def answer(self, asked: ChatRequest, answer: GatewayAnswer) -> Body:
        message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None}
        if answer.tool_calls:
            message["tool_calls"] = [*map(write_tool_call, answer.tool_calls)]
            message["content"] = answer.text or None
        choice = {
            "index": 0,
            "message": message,
            "finish_reason": answer.finish,
            "logprobs": None,
        }
        head = _head(asked, answer, "chat.completion")
        return {**head, "choices": [choice], "usage": _usage(answer)}

    def events(self, asked: ChatRequest, answer: GatewayAnswer) -> Iterator[StreamEvent]:
        """Yield the completion in chunks, each call in one."""
        head = _head(asked, answer, "chat.completion.chunk")
        usage = {"usage": None} if asked.stream_usage else {}

        def chunk(delta: Body, finish: str | None = None) -> StreamEvent:
            choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
            return StreamEvent("", json.dumps({**head, "choices": [choice], **usage}))

        yield chunk({"role": "assistant", "content": ""})
        if answer.text:
            yield chunk({"content": answer.text})
        for index, call in enumerate(answer.tool_calls):
            yield chunk({"tool_calls": [{"index": index, **write_tool_call(call)}]})
        yield chunk({}, answer.finish)
        if asked.stream_usage:
            yield StreamEvent("", json.dumps({**head, "choices": [], "usage": _usage(answer)}))
        yield StreamEvent("", "[DONE]")

    def error(self, status: int, text: str, *, is_too_long: bool = False) -> Body:
        return openai_error(status, text, is_too_long=is_too_long)


def openai_error(status: int, text: str, *, is_too_long: bool) -> Body:
    """Return an error as OpenAI writes it."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    code = "context_length_exceeded" if is_too_long else None
    return {"error": {"message": text, "type": kind, "param": None, "code": code}}


def write_tool_call(call: ToolCall) -> dict[str, Any]:
    """Return a tool call as OpenAI writes it."""
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    function = {"name": call.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}


def _head(asked: ChatRequest, answer: GatewayAnswer, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{answer.id}", "object": kind, "created": 0, "model": asked.model}


def _usage(answer: GatewayAnswer) -> dict[str, Any]:
    usage = answer.usage
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def _choice(told: Any, tools: Sequence[ToolSchema]) -> ToolChoice:
    choice: Body = told if isinstance(told, Mapping) else {}
    is_named = choice.get("type") == "function"
    function: Body = field(choice, "function", dict, of="'tool_choice'") if is_named else {}
    return tool_choice(told, rule=RULES.get(str(told)), name=function.get("name"), tools=tools)


def _message(told: Body, ignored: Container[str]) -> Message:
    role = role_of(told, *ROLES)
    if told.get("function_call") is not None:
        raise BadRequest("a message has 'function_call', but only 'tool_calls' are supported")
    if role != "tool":
        check_named(told, ignored)
    calls = items(told.get("tool_calls") or [], of="'tool_calls'")
    return Message(
        role,
        content_of(told.get("content"), _part, of="a message's 'content'"),
        tool_calls=tuple(map(_call, calls)),
        tool_call_id=field(told, "tool_call_id", str, of="a tool's message")
        if role == "tool"
        else None,
    )


def _call(told: Body) -> ToolCall:
    function = field(told, "function", dict, of="a tool call")
    return tool_call(told.get("id"), function.get("name"), function.get("arguments"))


def _part(told: Body) -> str | Image:
    match told.get("type"):
        case "text":
            return field(told, "text", str, of="a text part")
        case "image_url":
            return from_url(field(told, "image_url", dict, of="an image part").get("url"))
        case other:
            raise BadRequest(
                f"a part of a message has type {shorten(other)}; the supported types are text, "
                "image_url"
            )


def _tool(told: Body) -> ToolSchema:
    check_function(told)
    function = field(told, "function", dict, of="a tool")
    name = field(function, "name", str, of="a function")
    return tool_schema(name, function.get("description"), function.get("parameters"))
