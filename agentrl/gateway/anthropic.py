"""Anthropic's messages: `POST /v1/messages`."""

import json
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentrl.env import CallRule, ToolSchema
from agentrl.gateway.answer import GatewayAnswer
from agentrl.gateway.dialect import (
    BadRequest,
    Body,
    ChatRequest,
    StreamEvent,
    ToolChoice,
    check_fields,
    content_of,
    field,
    items,
    join_parts,
    read_unless_ignored,
    role_of,
    shorten,
    tool_call,
    tool_choice,
    tool_schema,
    turn_request,
)
from agentrl.gateway.images import from_base64
from agentrl.message import Image, Message, ToolCall

_HEARD = frozenset(
    {
        "messages",
        "system",
        "tools",
        "tool_choice",
        "model",
        "stream",
        "max_tokens",
        "stop_sequences",
    }
)
_ONLY: dict[str, list[Any]] = {
    "thinking": [{"type": "disabled"}],
}
_RULES: dict[str, CallRule] = {"auto": "auto", "none": "none", "any": "required"}
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    410: "not_found_error",
}


class AnthropicDialect:
    """The protocol of `client.messages.create`."""

    def read(self, body: Body, ignored: Container[str] = ()) -> ChatRequest:
        check_fields(body, heard=_HEARD, only=_ONLY, ignored=ignored)
        raw_messages = items(field(body, "messages", list, of="the request"), of="'messages'")
        if not raw_messages:
            raise BadRequest("'messages' is empty; send at least one message")
        tools = tuple(map(_tool, items(body.get("tools") or [], of="'tools'")))
        system = _text(body.get("system"))
        first = (Message("system", system),) if system else ()
        told = tuple(message for one in raw_messages for message in _messages(one))
        if not told:
            raise BadRequest("the messages say nothing; send at least one block")
        if told[-1].role == "assistant":
            raise BadRequest(
                "the last message is the assistant's, but turns are not continued; end with a "
                "message of the user's or a tool's result"
            )
        return ChatRequest(
            messages=first + told,
            tools=tools,
            model=str(body.get("model", "")),
            stream=bool(body.get("stream")),
            request=turn_request(
                max_tokens=[read_unless_ignored(body, "max_tokens", ignored)],
                stop=read_unless_ignored(body, "stop_sequences", ignored),
                choice=_choice(read_unless_ignored(body, "tool_choice", ignored), tools),
            ),
        )

    def answer(self, asked: ChatRequest, answer: GatewayAnswer) -> Body:
        return {**_head(asked, answer), "content": _blocks(answer), **_ending(answer)}

    def events(self, asked: ChatRequest, answer: GatewayAnswer) -> Iterator[StreamEvent]:
        """Yield the message, a block after another, each in one piece."""

        def event(kind: str, **fields: Any) -> StreamEvent:
            return StreamEvent(kind, json.dumps({"type": kind, **fields}))

        head = _head(asked, answer)
        begun = {**head, "content": [], "stop_reason": None, "stop_sequence": None}
        begun["usage"] = {**head["usage"], "output_tokens": 0}
        yield event("message_start", message=begun)
        for index, block in enumerate(_blocks(answer)):
            if block["type"] == "text":
                empty: dict[str, Any] = {"text": ""}
                delta = {"type": "text_delta", "text": block["text"]}
            else:
                empty = {"input": {}}
                partial_json = json.dumps(block["input"], ensure_ascii=False)
                delta = {"type": "input_json_delta", "partial_json": partial_json}
            yield event("content_block_start", index=index, content_block={**block, **empty})
            yield event("content_block_delta", index=index, delta=delta)
            yield event("content_block_stop", index=index)
        yield event("message_delta", delta=_ending(answer), usage=head["usage"])
        yield event("message_stop")

    def error(self, status: int, text: str, *, is_too_long: bool = False) -> Body:
        if is_too_long:
            text = f"prompt is too long: {text}"
        kind = _TYPES.get(status, "api_error")
        return {"type": "error", "error": {"type": kind, "message": text}}


def _choice(told: Any, tools: Sequence[ToolSchema]) -> ToolChoice:
    choice: Body = told if isinstance(told, Mapping) else {}
    kind = "" if choice.get("disable_parallel_tool_use") else str(choice.get("type"))
    name = choice.get("name") if kind == "tool" else None
    return tool_choice(told, rule=_RULES.get(kind), name=name, tools=tools)


def _head(asked: ChatRequest, answer: GatewayAnswer) -> dict[str, Any]:
    usage = answer.usage
    return {
        "id": f"msg_{answer.id}",
        "type": "message",
        "role": "assistant",
        "model": asked.model,
        "usage": {
            "input_tokens": usage.prompt_tokens - usage.cached_tokens,
            "cache_read_input_tokens": usage.cached_tokens,
            "cache_creation_input_tokens": 0,
            "output_tokens": usage.completion_tokens,
        },
    }


def _ending(answer: GatewayAnswer) -> dict[str, str | None]:
    reason = {"length": "max_tokens", "tool_calls": "tool_use", "stop": "end_turn"}[answer.finish]
    if answer.stop is not None and not answer.tool_calls:
        reason = "stop_sequence"
    return {"stop_reason": reason, "stop_sequence": answer.stop}


def _blocks(answer: GatewayAnswer) -> list[dict[str, Any]]:
    text_blocks = [{"type": "text", "text": answer.text}] if answer.text else []
    calls = [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": dict(call.arguments)}
        for call in answer.tool_calls
    ]
    return [*text_blocks, *calls]


def _messages(told: Body) -> Iterator[Message]:
    """Yield the messages of one message; tool results are blocks of a user's message here."""
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
                    f"a block has type {shorten(other)}; the supported types are text, image, "
                    "tool_use, tool_result"
                )
    if parts or calls or role == "assistant":
        yield Message(role, join_parts(parts), tool_calls=tuple(calls))


def _tool_result(block: Body) -> Message:
    answered = field(block, "tool_use_id", str, of="a tool's result")
    content = content_of(block.get("content"), _part, of="a tool's result")
    message = Message("tool", content, tool_call_id=answered)
    if block.get("is_error") is True and not message.text.casefold().startswith("error"):
        parts = [content] if isinstance(content, str) else content
        return replace(message, content=join_parts(["Error: ", *parts]))
    return message


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
        raise BadRequest(
            f"a tool has type {shorten(told['type'])}; only the program's own tools are supported"
        )
    return tool_schema(name, told.get("description"), told.get("input_schema"))
