"""OpenAI's chat completions: `POST /v1/chat/completions`."""

import json
from collections.abc import Iterator
from typing import Any

from agentrl.env import Action, ToolSchema
from agentrl.gateway.dialogue import (
    ROLES,
    Asked,
    BadRequest,
    Body,
    Event,
    check_function,
    content_of,
    field,
    items,
    refuse,
    role_of,
    tool_call,
    tool_schema,
)
from agentrl.gateway.pictures import from_url
from agentrl.message import Image, Message, ToolCall

_ONLY = {"n": 1, "logprobs": False, "audio": None}


class Chat:
    """The protocol of `client.chat.completions.create`."""

    def read(self, body: Body) -> Asked:
        """Return what a request asks."""
        refuse(body, _ONLY, of="the request")
        messages = items(field(body, "messages", list, of="the request"), of="'messages'")
        if not messages:
            raise BadRequest("'messages' is empty; ask something")
        return Asked(
            messages=tuple(map(_message, messages)),
            tools=tuple(map(_tool, items(body.get("tools") or [], of="'tools'"))),
            model=str(body.get("model", "")),
            stream=bool(body.get("stream")),
        )

    def answer(self, id: str, asked: Asked, action: Action) -> Body:
        """Return the completion."""
        message: dict[str, Any] = {"role": "assistant", "content": action.text, "refusal": None}
        if action.tool_calls:
            message["tool_calls"] = [*map(written_call, action.tool_calls)]
            message["content"] = action.text or None
        choice = {
            "index": 0,
            "message": message,
            "finish_reason": _finish(action),
            "logprobs": None,
        }
        return {**_head(id, asked, "chat.completion"), "choices": [choice]}

    def events(self, id: str, asked: Asked, action: Action) -> Iterator[Event]:
        """Yield the completion in chunks, each call in one."""
        head = _head(id, asked, "chat.completion.chunk")

        def chunk(delta: Body, finish: str | None = None) -> Event:
            choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
            return Event("", json.dumps({**head, "choices": [choice]}))

        yield chunk({"role": "assistant", "content": ""})
        if action.text:
            yield chunk({"content": action.text})
        for index, call in enumerate(action.tool_calls):
            yield chunk({"tool_calls": [{"index": index, **written_call(call)}]})
        yield chunk({}, _finish(action))
        yield Event("", "[DONE]")

    def error(self, status: int, text: str) -> Body:
        """Return an error as the official client reads it."""
        return openai_error(status, text)


def openai_error(status: int, text: str) -> Body:
    """Return an error as OpenAI writes it."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": text, "type": kind, "param": None, "code": None}}


def written_call(call: ToolCall) -> dict[str, Any]:
    """Return a tool call as OpenAI writes it."""
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    function = {"name": call.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}


def _head(id: str, asked: Asked, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{id}", "object": kind, "created": 0, "model": asked.model}


def _finish(action: Action) -> str:
    return "tool_calls" if action.tool_calls else "stop"


def _message(told: Body) -> Message:
    role = role_of(told, *ROLES)
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
            raise BadRequest(f"a part of a message is of type {other!r}; there are text, image_url")


def _tool(told: Body) -> ToolSchema:
    check_function(told)
    function = field(told, "function", dict, of="a tool")
    name = field(function, "name", str, of="a function")
    return tool_schema(name, function.get("description"), function.get("parameters"))
