"""Anthropic's messages: `POST /v1/messages`."""

import json
from collections.abc import Iterator
from typing import Any

from agentrl.env import Action, ToolSchema
from agentrl.gateway.dialogue import (
    Asked,
    BadRequest,
    Body,
    Event,
    content_of,
    field,
    items,
    joined,
    role_of,
    tool_call,
    tool_schema,
)
from agentrl.gateway.pictures import from_base64
from agentrl.message import Image, Message, ToolCall

_NO_USAGE = {"input_tokens": 0, "output_tokens": 0}
"""Tokens are counted where they are recorded; a program has no use for them here."""
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    410: "not_found_error",
}


class Messages:
    """The protocol of `client.messages.create`."""

    def read(self, body: Body) -> Asked:
        """Return what a request asks."""
        told = items(field(body, "messages", list, of="the request"), of="'messages'")
        if not told:
            raise BadRequest("'messages' is empty; ask something")
        system = _text(body.get("system"))
        first = (Message("system", system),) if system else ()
        return Asked(
            messages=first + tuple(message for one in told for message in _messages(one)),
            tools=tuple(map(_tool, items(body.get("tools") or [], of="'tools'"))),
            model=str(body.get("model", "")),
            stream=bool(body.get("stream")),
        )

    def answer(self, id: str, asked: Asked, action: Action) -> Body:
        """Return the message."""
        return {**_head(id, asked), "content": _blocks(action), "stop_reason": _reason(action)}

    def events(self, id: str, asked: Asked, action: Action) -> Iterator[Event]:
        """Yield the message, a block after another, each in one piece."""

        def event(kind: str, **fields: Any) -> Event:
            return Event(kind, json.dumps({"type": kind, **fields}))

        begun = {**_head(id, asked), "content": [], "stop_reason": None}
        yield event("message_start", message=begun)
        for index, block in enumerate(_blocks(action)):
            if block["type"] == "text":
                empty: dict[str, Any] = {"text": ""}
                delta = {"type": "text_delta", "text": block["text"]}
            else:
                empty = {"input": {}}
                said = json.dumps(block["input"], ensure_ascii=False)
                delta = {"type": "input_json_delta", "partial_json": said}
            yield event("content_block_start", index=index, content_block={**block, **empty})
            yield event("content_block_delta", index=index, delta=delta)
            yield event("content_block_stop", index=index)
        ended = {"stop_reason": _reason(action), "stop_sequence": None}
        yield event("message_delta", delta=ended, usage=_NO_USAGE)
        yield event("message_stop")

    def error(self, status: int, text: str) -> Body:
        """Return an error as the official client reads it."""
        kind = _TYPES.get(status, "api_error")
        return {"type": "error", "error": {"type": kind, "message": text}}


def _head(id: str, asked: Asked) -> dict[str, Any]:
    return {
        "id": f"msg_{id}",
        "type": "message",
        "role": "assistant",
        "model": asked.model,
        "stop_sequence": None,
        "usage": _NO_USAGE,
    }


def _reason(action: Action) -> str:
    return "tool_use" if action.tool_calls else "end_turn"


def _blocks(action: Action) -> list[dict[str, Any]]:
    said = [{"type": "text", "text": action.text}] if action.text else []
    calls = [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": dict(call.arguments)}
        for call in action.tool_calls
    ]
    return [*said, *calls]


def _messages(told: Body) -> Iterator[Message]:
    """Yield what one message says: answers of tools are blocks of a user's message here."""
    role = role_of(told, "user", "assistant", "system")
    content = told.get("content")
    if isinstance(content, str):
        yield Message(role, content)
        return
    parts: list[str | Image] = []
    calls: list[ToolCall] = []
    for block in items(content, of="a message's 'content'"):
        match block.get("type"):
            case "text":
                parts.append(field(block, "text", str, of="a text block"))
            case "image":
                parts.append(_image(block))
            case "tool_use":
                calls.append(tool_call(block.get("id"), block.get("name"), block.get("input")))
            case "tool_result":
                yield _tool_result(block)
            case "thinking" | "redacted_thinking":
                continue  # the policy's thoughts are in its tokens
            case other:
                raise BadRequest(
                    f"a block is of type {other!r}; there are text, image, tool_use, tool_result"
                )
    if parts or calls or role == "assistant":
        yield Message(role, joined(parts), tool_calls=tuple(calls))


def _tool_result(block: Body) -> Message:
    answered = field(block, "tool_use_id", str, of="a tool's result")
    content = content_of(block.get("content"), _part, of="a tool's result")
    return Message("tool", content, tool_call_id=answered)


def _part(block: Body) -> str | Image:
    if block.get("type") == "image":
        return _image(block)
    return field(block, "text", str, of="a text block")


def _image(block: Body) -> Image:
    source = field(block, "source", dict, of="an image block")
    return from_base64(source.get("data"), source.get("media_type"))


def _text(told: Any) -> str:
    if told is None or isinstance(told, str):
        return told or ""
    return "".join(
        field(one, "text", str, of="a block of 'system'") for one in items(told, of="'system'")
    )


def _tool(told: Body) -> ToolSchema:
    name = field(told, "name", str, of="a tool")
    if told.get("type") not in (None, "custom"):
        raise BadRequest(f"a tool is of type {told['type']!r}; only tools of the program's own")
    return tool_schema(name, told.get("description"), told.get("input_schema"))
