"""OpenAI's responses: `POST /v1/responses`."""

import json
from collections.abc import Iterator
from typing import Any

from agentrl.env import Action, ToolSchema
from agentrl.gateway.chat import openai_error
from agentrl.gateway.dialogue import (
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
from agentrl.message import Content, Image, Message, ToolCall

_ROLES = ("system", "developer", "user", "assistant")
_ONLY = {"background": False, "conversation": None, "prompt": None}


class Responses:
    """The protocol of `client.responses.create`."""

    def read(self, body: Body) -> Asked:
        """Return what a request asks."""
        refuse(body, _ONLY, of="the request")
        told = body.get("input")
        asked = [Message("user", told)] if isinstance(told, str) else _messages(told)
        if not asked:
            raise BadRequest("'input' is empty; ask something")
        system = body.get("instructions")
        return Asked(
            messages=((Message("system", system),) if system else ()) + tuple(asked),
            tools=tuple(map(_tool, items(body.get("tools") or [], of="'tools'"))),
            model=str(body.get("model", "")),
            stream=bool(body.get("stream")),
            after=str(body.get("previous_response_id") or "").removeprefix("resp_"),
        )

    def answer(self, id: str, asked: Asked, action: Action) -> Body:
        """Return the finished response."""
        return _response(id, asked, _output(id, action), "completed")

    def events(self, id: str, asked: Asked, action: Action) -> Iterator[Event]:
        """Yield the response, an item after another, each in one piece."""
        number = 0

        def event(kind: str, **fields: Any) -> Event:
            nonlocal number
            number += 1
            return Event(kind, json.dumps({"type": kind, "sequence_number": number - 1, **fields}))

        output = _output(id, action)
        yield event("response.created", response=_response(id, asked, [], "in_progress"))
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
                said = item["arguments"]
                yield event("response.function_call_arguments.delta", **at, delta=said)
                yield event(
                    "response.function_call_arguments.done",
                    **at,
                    name=item["name"],
                    arguments=said,
                )
            yield event("response.output_item.done", output_index=index, item=item)
        yield event("response.completed", response=_response(id, asked, output, "completed"))

    def error(self, status: int, text: str) -> Body:
        """Return an error as the official client reads it."""
        return openai_error(status, text)


def _response(id: str, asked: Asked, output: list[dict[str, Any]], status: str) -> Body:
    return {
        "id": f"resp_{id}",
        "object": "response",
        "created_at": 0,
        "status": status,
        "model": asked.model,
        "output": output,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "previous_response_id": f"resp_{asked.after}" if asked.after else None,
        "temperature": None,
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
    }


def _output(id: str, action: Action) -> list[dict[str, Any]]:
    output: list[dict[str, Any]] = []
    if action.text or not action.tool_calls:
        part = {"type": "output_text", "text": action.text, "annotations": [], "logprobs": []}
        said = {"id": f"msg_{id}", "type": "message", "role": "assistant"}
        output.append({**said, "status": "completed", "content": [part]})
    for index, call in enumerate(action.tool_calls):
        arguments = json.dumps(call.arguments, ensure_ascii=False)
        head = {"id": f"fc_{id}_{index}", "type": "function_call", "status": "completed"}
        output.append({**head, "call_id": call.id, "name": call.name, "arguments": arguments})
    return output


def _messages(told: Any) -> list[Message]:
    """Return the messages of a list of items; the parts of one turn are items of their own."""
    found: list[Message] = []
    for item in items(told, of="'input'"):
        match item.get("type", "message"):
            case "message":
                found.append(Message(role_of(item, *_ROLES), _content(item.get("content"))))
            case "function_call":
                _add_call(
                    found, tool_call(item.get("call_id"), item.get("name"), item.get("arguments"))
                )
            case "function_call_output":
                answered = field(item, "call_id", str, of="a function's output")
                found.append(Message("tool", _content(item.get("output")), tool_call_id=answered))
            case "reasoning":
                continue  # the policy's thoughts are in its tokens
            case other:
                raise BadRequest(
                    f"an item of 'input' is of type {other!r}; there are message, function_call, "
                    "function_call_output"
                )
    return found


def _add_call(found: list[Message], call: ToolCall) -> None:
    last = found[-1] if found else None
    if last is not None and last.role == "assistant":
        calls = (*last.tool_calls, call)
        found[-1] = Message("assistant", last.content, tool_calls=calls)
    else:
        found.append(Message("assistant", "", tool_calls=(call,)))


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
                f"a part of a message is of type {other!r}; there are input_text, output_text, "
                "input_image"
            )


def _tool(told: Body) -> ToolSchema:
    check_function(told)
    name = field(told, "name", str, of="a function")
    return tool_schema(name, told.get("description"), told.get("parameters"))
