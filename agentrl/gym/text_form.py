"""Observations and actions as text, and their `gymnasium.spaces`.

An observation is a JSON object. An action is plain words, or a JSON object with `tool_calls`:

    {"text": "Let me see.", "tool_calls": [{"name": "multiply", "arguments": {"a": 6, "b": 7}}]}

Both ways lose nothing but the ids of tool calls and the texts of malformed ones.
"""

import base64
import json
from collections.abc import Mapping
from typing import Any, cast

from gymnasium import Space

from agentrl.chat.call_json import CALL_LIMITS, CALLS_MAX, TOO_MANY, call_of
from agentrl.env import Action, Observation
from agentrl.message import Image, Message, ToolCall
from agentrl.runtime.json_limits import JsonLimitError, JsonLimits, read_json

OBSERVATION_LIMITS = JsonLimits(text_bytes=2**26)
"""Of what an environment shows; images are in it."""


def observation_text(observation: Observation) -> str:
    """Return an observation as text."""
    tools = None if observation.tools is None else list(observation.tools)
    messages = [_message_json(message) for message in observation.messages]
    return json.dumps({"messages": messages, "tools": tools}, ensure_ascii=False, default=dict)


def observation_of(text: str) -> Observation:
    """Return the observation that `text` stands for; `ValueError` if it is none."""
    try:
        parts = read_json(text, OBSERVATION_LIMITS)
        tools = parts["tools"]
        return Observation(
            messages=tuple(_parse_message(message) for message in parts["messages"]),
            tools=None if tools is None else tuple(tools),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{text[:80]!r} is not an observation as text: {error!r}") from error


def action_text(action: Action) -> str:
    """Return an action as text."""
    if not action.tool_calls and "tool_calls" not in action.text:
        return action.text
    calls = [{"name": c.name, "arguments": dict(c.arguments)} for c in action.tool_calls]
    return json.dumps({"text": action.text, "tool_calls": calls}, ensure_ascii=False)


def action_of(text: str) -> Action:
    """Return the action that `text` stands for; a call that cannot be read is a malformed one."""
    try:
        parts = read_json(text, CALL_LIMITS) if text.lstrip().startswith("{") else None
    except JsonLimitError as error:
        # Words that begin with a brace are words, unless a call was clearly meant.
        return (
            Action(text, malformed=(f"not JSON: {error}",))
            if "tool_calls" in text
            else Action(text)
        )
    if not isinstance(parts, dict) or "tool_calls" not in parts:
        return Action(text)
    fields = cast("dict[str, Any]", parts)
    calls: list[ToolCall] = []
    malformed: list[str] = []
    entries: Any = fields["tool_calls"]
    several = cast("list[Any]", entries if isinstance(entries, list) else [entries])
    if len(several) > CALLS_MAX:
        malformed.append(TOO_MANY)
    for entry in several[:CALLS_MAX]:
        call, wrong = call_of(entry, arguments_key="arguments", call_id=f"call_{len(calls)}")
        if call is None:
            malformed.append(f'{wrong}: {entry!r:.200}; write {{"name": ..., "arguments": {{}}}}')
        else:
            calls.append(call)
    return Action(str(fields.get("text", "")), tuple(calls), tuple(malformed))


class TextSpace(Space[str]):
    """Every text that can be encoded as UTF-8. Samples are short and of any script."""

    def contains(self, x: Any) -> bool:
        if not isinstance(x, str):
            return False
        return not any("\ud800" <= character <= "\udfff" for character in x)

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> str:
        _refuse_mask(mask, probability)
        letters = "abcdefghij 0123456789.,-+=äß€漢字🙂\n"
        indices = self.np_random.integers(len(letters), size=int(self.np_random.integers(33)))
        return "".join(letters[i] for i in indices)

    @property
    def is_np_flattenable(self) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class ActionSpace(TextSpace):
    """Actions as text. Samples are answers in words and tool calls."""

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> str:
        words = super().sample(mask, probability)
        if self.np_random.integers(2):
            return words
        return action_text(Action("", (ToolCall("call_0", "tool", {"argument": words}),)))


class ObservationSpace(TextSpace):
    """Observations as text."""

    def contains(self, x: Any) -> bool:
        if not super().contains(x):
            return False
        try:
            observation_of(x)
        except ValueError:
            return False
        return True

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> str:
        return observation_text(Observation((Message("user", super().sample(mask, probability)),)))


def _refuse_mask(mask: Any | None, probability: Any | None) -> None:
    if mask is not None or probability is not None:
        raise ValueError("a space of texts has no finite set of elements to mask; pass no mask")


def _message_json(message: Message) -> dict[str, Any]:
    content: Any = message.content
    if not isinstance(content, str):
        content = [part if isinstance(part, str) else _image_json(part) for part in message.content]
    message_dict: dict[str, Any] = {"role": message.role, "content": content}
    if message.tool_calls:
        message_dict["tool_calls"] = [
            {"id": c.id, "name": c.name, "arguments": dict(c.arguments)} for c in message.tool_calls
        ]
    if message.tool_call_id is not None:
        message_dict["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        message_dict["name"] = message.name
    return message_dict


def _image_json(image: Image) -> dict[str, str]:
    return {"image": base64.b64encode(image.data).decode(), "media_type": image.media_type}


def _parse_message(made: Mapping[str, Any]) -> Message:
    content = made["content"]
    if not isinstance(content, str):
        content = tuple(
            part
            if isinstance(part, str)
            else Image(base64.b64decode(part["image"]), part["media_type"])
            for part in content
        )
    return Message(
        made["role"],
        content,
        tool_calls=tuple(
            ToolCall(c["id"], c["name"], c["arguments"]) for c in made.get("tool_calls", ())
        ),
        tool_call_id=made.get("tool_call_id"),
        name=made.get("name"),
    )
