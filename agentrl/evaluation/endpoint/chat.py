"""Messages as lines of JSON in the form of chat completions, a token per byte."""

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from agentrl.chat.call_json import CALL_LIMITS, CALLS_MAX, TOO_MANY, call_of
from agentrl.chat.renderer import TokenSegment
from agentrl.env import Action, ToolSchema
from agentrl.message import Content, Image, Message, ToolCall
from agentrl.runtime.chat_choice import ChatChoice
from agentrl.runtime.json_limits import JsonLimitError, check_json, read_json

END = ord("\n")
"""Ends a line; the JSON of a line has none inside."""


class EndpointChat:
    """Conversion of an episode's messages to bytes, in place of a policy's `ChatFormat`."""

    stop_token_ids = frozenset({END})

    def opening(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema]
    ) -> tuple[TokenSegment, ...]:
        lines = [{"tools": list(tools)}, *map(_message, messages)]
        return (TokenSegment("prompt", _bytes(lines)),)

    def reply(
        self,
        messages: Sequence[Message],
        *,
        ended: bool,
        tools: Sequence[ToolSchema] | None = None,
    ) -> tuple[TokenSegment, ...]:
        tool_lines = [] if tools is None else [{"tools": list(tools)}]
        token_ids = _bytes([*tool_lines, *map(_message, messages)])
        closing = () if ended else (TokenSegment("template", (END,)),)
        return (*closing, TokenSegment("tool", token_ids)) if token_ids else closing

    def parse(self, token_ids: Sequence[int]) -> Action:
        """Read the endpoint's message. A call that cannot be read is malformed."""
        message = json.loads(bytes(token_ids) or b"{}")
        calls: list[ToolCall] = []
        malformed: list[str] = []
        tool_calls = message.get("tool_calls") or ()
        for number, call in enumerate(tool_calls[:CALLS_MAX]):
            name, arguments = call["function"]["name"], call["function"].get("arguments")
            try:
                value = {"name": name, "arguments": read_arguments(arguments)}
            except JsonLimitError as error:
                tool_call, wrong = None, str(error)
            else:
                id = call.get("id") or f"call_{number}"
                tool_call, wrong = call_of(value, arguments_key="arguments", call_id=id)
            if tool_call is not None:
                calls.append(tool_call)
            else:
                malformed.append(
                    f"Malformed tool call: the arguments of {name:.200} are not a JSON object: "
                    f"{wrong}: {arguments!r:.200}"
                )
        if len(tool_calls) > CALLS_MAX:
            malformed.append(TOO_MANY)
        return Action(message.get("content") or "", tuple(calls), tuple(malformed))


def turn_bytes(choice: ChatChoice) -> tuple[int, ...]:
    """Return a message as a line for `EndpointChat.parse`; raise an attribute, lookup or type error
    for calls that are none."""
    message: dict[str, Any] = {**choice.message, "content": choice.content}
    for call in message.get("tool_calls") or ():
        id = call.get("id") or ""
        if not isinstance(call["function"]["name"], str) or not isinstance(id, str):
            raise TypeError("the name or id of a call is not text")
    fields = {name: message[name] for name in ("content", "tool_calls") if message.get(name)}
    return _bytes([{"role": "assistant", **fields}])


def conversation(token_ids: Sequence[int]) -> tuple[list[dict[str, Any]], list[ToolSchema]]:
    """Return the messages, as an endpoint takes them, and the tools there are in the end.

    Endpoints refuse a call that nobody answers and an answer that nobody asked for, which is how an
    environment answers a malformed call. So an answer without a call takes the oldest open one, and
    a call without an answer gets an empty one.
    """
    messages: list[dict[str, Any]] = []
    tools: list[ToolSchema] = []
    open_calls: list[str] = []
    for line in bytes(token_ids).split(b"\n"):
        if not line:
            continue
        message = cast("dict[str, Any]", json.loads(line))
        if "tools" in message:
            tools = message["tools"]
            continue
        if message["role"] == "tool":
            if not open_calls:
                message = {"role": "user", "content": message["content"]}
            else:
                is_open = message.get("tool_call_id") in open_calls
                message["tool_call_id"] = message["tool_call_id"] if is_open else open_calls[0]
                open_calls.remove(message["tool_call_id"])
        else:
            messages += _answer_open_calls(open_calls)
            if "tool_calls" in message:
                message["tool_calls"] = [
                    _repair_call(n, c) for n, c in enumerate(message["tool_calls"])
                ]
            open_calls = [call["id"] for call in message.get("tool_calls", ())]
        messages.append(message)
    return [*messages, *_answer_open_calls(open_calls)], tools


def read_arguments(arguments: Any) -> Any:
    """Return a call's arguments, JSON as a text or a value; raise `JsonLimitError` for neither."""
    if isinstance(arguments, str):
        return read_json(arguments or "{}", CALL_LIMITS)
    value = {} if arguments is None else arguments
    check_json(value, CALL_LIMITS)
    return value


def _bytes(lines: Iterable[Mapping[str, Any]]) -> tuple[int, ...]:
    return tuple(b"".join(json.dumps(line).encode() + b"\n" for line in lines))


def _message(message: Message) -> dict[str, Any]:
    line: dict[str, Any] = {"role": message.role, "content": _content(message.content)}
    if message.tool_calls:
        line["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments))},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        line["tool_call_id"] = message.tool_call_id
    return line


def _content(content: Content) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    return [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": "image_url", "image_url": {"url": _data_url(part)}}
        for part in content
    ]


def _data_url(image: Image) -> str:
    return f"data:{image.media_type};base64,{base64.b64encode(image.data).decode()}"


def _repair_call(number: int, call: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call as endpoints take it back: with an id, and with arguments they can read."""
    function = call["function"]
    try:
        arguments = read_arguments(function.get("arguments"))
    except JsonLimitError:
        arguments = None
    if not isinstance(arguments, dict):
        arguments = {"malformed": function["arguments"]}
    return {
        "id": call.get("id") or f"call_{number}",
        "type": "function",
        "function": {"name": function["name"], "arguments": json.dumps(arguments)},
    }


def _answer_open_calls(open_calls: Sequence[str]) -> list[dict[str, Any]]:
    return [{"role": "tool", "tool_call_id": call, "content": ""} for call in open_calls]
