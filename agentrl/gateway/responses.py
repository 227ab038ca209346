"""OpenAI's responses: `POST /v1/responses`."""

import json
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

from agentrl.env import ToolSchema, TurnRequest
from agentrl.gateway.answer import GatewayAnswer
from agentrl.gateway.chat import openai_error
from agentrl.gateway.dialect import (
    RULES,
    BadRequest,
    Body,
    ChatRequest,
    StreamEvent,
    ToolChoice,
    check_fields,
    check_function,
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
from agentrl.message import Content, Image, Message, ToolCall

_ITEM_ID = re.compile(r"(?:msg|call)_(\d+)(?:_\d+)?")
_ROLES = ("system", "developer", "user", "assistant")
_HEARD = frozenset(
    {
        "input",
        "instructions",
        "tools",
        "tool_choice",
        "model",
        "stream",
        "previous_response_id",
        "max_output_tokens",
    }
)
_ONLY: dict[str, list[Any]] = {
    "background": [False],
    "conversation": [],
    "prompt": [],
    "include": [[], ["reasoning.encrypted_content"]],
    "parallel_tool_calls": [True],
    "text": [{"format": {"type": "text"}}, {}],
    "reasoning": [{}],
    "truncation": ["disabled"],
    "top_logprobs": [0],
    "max_tool_calls": [],
}


class ResponsesDialect:
    """The protocol of `client.responses.create`."""

    def read(self, body: Body, ignored: Container[str] = ()) -> ChatRequest:
        check_fields(body, heard=_HEARD, only=_ONLY, ignored=ignored)
        raw_input = body.get("input")
        messages = (
            [Message("user", raw_input)] if isinstance(raw_input, str) else _messages(raw_input)
        )
        if not messages:
            raise BadRequest("'input' is empty; send at least one item")
        instructions = body.get("instructions") or ""
        if not isinstance(instructions, str):
            raise BadRequest("'instructions' must be text")
        tools = tuple(map(_tool, items(body.get("tools") or [], of="'tools'")))
        return ChatRequest(
            messages=tuple(messages),
            instructions=instructions,
            tools=tools,
            model=str(body.get("model", "")),
            stream=bool(body.get("stream")),
            after=_after(body.get("previous_response_id")),
            request=turn_request(
                max_tokens=[read_unless_ignored(body, "max_output_tokens", ignored)],
                choice=_choice(read_unless_ignored(body, "tool_choice", ignored), tools),
            ),
        )

    def answer(self, asked: ChatRequest, answer: GatewayAnswer) -> Body:
        return _response(asked, answer, _output(answer), _status(answer))

    def events(self, asked: ChatRequest, answer: GatewayAnswer) -> Iterator[StreamEvent]:
        """Yield the response, an item after another, each in one piece."""
        number = 0

        def event(kind: str, **fields: Any) -> StreamEvent:
            nonlocal number
            number += 1
            return StreamEvent(
                kind, json.dumps({"type": kind, "sequence_number": number - 1, **fields})
            )

        output = _output(answer)
        yield event("response.created", response=_response(asked, answer, [], "in_progress"))
        for index, item in enumerate(output):
            at = {"output_index": index, "item_id": item["id"]}
            empty = {"content": []} if item["type"] == "message" else {"arguments": ""}
            begun = {**item, "status": "in_progress", **empty}
            yield event("response.output_item.added", output_index=index, item=begun)
            if item["type"] == "message":
                part = item["content"][0]
                inside = {**at, "content_index": 0}
                yield event("response.content_part.added", **inside, part={**part, "text": ""})
                yield event("response.output_text.delta", **inside, delta=part["text"], logprobs=[])
                yield event("response.output_text.done", **inside, text=part["text"], logprobs=[])
                yield event("response.content_part.done", **inside, part=part)
            else:
                arguments = item["arguments"]
                yield event("response.function_call_arguments.delta", **at, delta=arguments)
                yield event(
                    "response.function_call_arguments.done",
                    **at,
                    name=item["name"],
                    arguments=arguments,
                )
            yield event("response.output_item.done", output_index=index, item=item)
        status = _status(answer)
        yield event(f"response.{status}", response=_response(asked, answer, output, status))

    def error(self, status: int, text: str, *, is_too_long: bool = False) -> Body:
        return openai_error(status, text, is_too_long=is_too_long)


def _status(answer: GatewayAnswer) -> str:
    return "incomplete" if answer.finish == "length" else "completed"


def _response(
    asked: ChatRequest, answer: GatewayAnswer, output: list[dict[str, Any]], status: str
) -> dict[str, Any]:
    cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
    return {
        "id": f"resp_{answer.id}",
        "object": "response",
        "created_at": 0,
        "status": status,
        "model": asked.model,
        "output": output,
        "error": None,
        "incomplete_details": cut,
        "instructions": asked.instructions or None,
        "max_output_tokens": asked.request.max_tokens,
        "metadata": {},
        "parallel_tool_calls": True,
        "previous_response_id": f"resp_{asked.after}" if asked.after else None,
        "temperature": None,
        "tool_choice": _write_choice(asked.request),
        "tools": [],
        "top_p": None,
        "usage": None if status == "in_progress" else _usage(answer),
    }


def _after(value: Any) -> str:
    if value is None or value == "":
        return ""
    if not isinstance(value, str) or not (id := value.removeprefix("resp_")):
        raise BadRequest(
            f"previous_response_id is {shorten(value)}, which is not a response of this episode"
        )
    return id


def _choice(told: Any, tools: Sequence[ToolSchema]) -> ToolChoice:
    choice: Body = told if isinstance(told, Mapping) else {}
    name = choice.get("name") if choice.get("type") == "function" else None
    return tool_choice(told, rule=RULES.get(str(told)), name=name, tools=tools)


def _write_choice(request: TurnRequest) -> str | dict[str, str]:
    return {"type": "function", "name": request.tool} if request.tool else request.calls


def _usage(answer: GatewayAnswer) -> dict[str, Any]:
    usage = answer.usage
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _output(answer: GatewayAnswer) -> list[dict[str, Any]]:
    output: list[dict[str, Any]] = []
    if answer.text or not answer.tool_calls:
        part = {"type": "output_text", "text": answer.text, "annotations": [], "logprobs": []}
        message = {"id": f"msg_{answer.id}", "type": "message", "role": "assistant"}
        output.append({**message, "status": _status(answer), "content": [part]})
    for index, call in enumerate(answer.tool_calls):
        arguments = json.dumps(call.arguments, ensure_ascii=False)
        head = {"id": f"fc_{answer.id}_{index}", "type": "function_call", "status": "completed"}
        output.append({**head, "call_id": call.id, "name": call.name, "arguments": arguments})
    return output


def _messages(told: Any) -> list[Message]:
    """Return the messages of a list of items; the parts of one turn are items of their own."""
    messages: list[Message] = []
    last_turn = ""
    for item in items(told, of="'input'"):
        turn = _find_turn(item)
        is_next_turn = bool(turn and last_turn and turn != last_turn)
        last_turn = turn
        match item.get("type", "message"):
            case "message":
                messages.append(Message(role_of(item, *_ROLES), _content(item.get("content"))))
            case "function_call":
                _add_call(
                    messages,
                    tool_call(item.get("call_id"), item.get("name"), item.get("arguments")),
                    is_next_turn=is_next_turn,
                )
            case "function_call_output":
                answered = field(item, "call_id", str, of="a function's output")
                messages.append(
                    Message("tool", _content(item.get("output")), tool_call_id=answered)
                )
            case "reasoning":
                continue  # the policy's thoughts are in its tokens
            case other:
                raise BadRequest(
                    f"an item of 'input' has type {shorten(other)}; the supported types are "
                    "message, function_call, function_call_output"
                )
    return messages


def _find_turn(item: Body) -> str:
    """Return the id of the answer that an item is a part of, as `_output` wrote it; empty for an
    item of the program's, and for one whose id it has removed."""
    match = _ITEM_ID.fullmatch(str(item.get("call_id") or item.get("id")))
    return "" if match is None else match[1]


def _add_call(messages: list[Message], call: ToolCall, *, is_next_turn: bool) -> None:
    """Add a call to the turn that the last item was a part of, or to one of its own."""
    last = messages[-1] if messages else None
    if last is not None and last.role == "assistant" and not is_next_turn:
        calls = (*last.tool_calls, call)
        messages[-1] = Message("assistant", last.content, tool_calls=calls)
    else:
        messages.append(Message("assistant", "", tool_calls=(call,)))


def _content(told: Any) -> Content:
    return content_of(told, _part, of="a 'content'")


def _part(told: Body) -> str | Image:
    match told.get("type"):
        case "input_text" | "output_text":
            return field(told, "text", str, of="a text part")
        case "input_image":
            return from_url(told.get("image_url"))
        case other:
            raise BadRequest(
                f"a part of a message has type {shorten(other)}; the supported types are "
                "input_text, output_text, input_image"
            )


def _tool(told: Body) -> ToolSchema:
    check_function(told)
    name = field(told, "name", str, of="a function")
    return tool_schema(name, told.get("description"), told.get("parameters"))
