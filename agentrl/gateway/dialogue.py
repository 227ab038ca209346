"""What programs ask and are answered, whatever the protocol; and what in it they have not said yet.

Pure: a protocol's bodies become an `Asked`, an `Action` becomes a protocol's answer.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agentrl.env import Action, ToolSchema
from agentrl.message import Content, Image, Message, Role, ToolCall

Body = Mapping[str, Any]


class BadRequest(ValueError):
    """A request that cannot be answered; the text is for the program that sent it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request for a message of the policy's."""

    messages: tuple[Message, ...]
    """The whole conversation as the program tells it."""
    tools: tuple[ToolSchema, ...] = ()
    model: str = ""
    """What the program calls the policy; given back, and of no other effect."""
    stream: bool = False
    after: str = ""
    """Id of the answer whose conversation comes before `messages`, where the protocol has that."""


@dataclass(frozen=True, slots=True)
class Event:
    """One server-sent event of a streamed answer."""

    name: str
    """Empty where the protocol names none."""
    data: str


class Dialect(Protocol):
    """One protocol: requests read, answers written."""

    def read(self, body: Body) -> Asked:
        """Return what a request asks; `BadRequest` says what is wrong with it."""
        ...

    def answer(self, id: str, asked: Asked, action: Action) -> Body:
        """Return the body of the answer."""
        ...

    def events(self, id: str, asked: Asked, action: Action) -> Iterator[Event]:
        """Yield the answer as a stream."""
        ...

    def error(self, status: int, text: str) -> Body:
        """Return the body of an error."""
        ...


def continuation(known: Sequence[Message], asked: Sequence[Message]) -> tuple[Message, ...] | None:
    """Return what `asked` adds to the conversation `known`; None when it is another conversation.

    `known` ends with what the policy said last. A program may spell that differently (a call's
    arguments in another order, no text instead of an empty one), and must not change it.
    """
    if len(asked) <= len(known):
        return None
    same = all(_alike(one, other) for one, other in zip(known, asked, strict=False))
    return tuple(asked[len(known) :]) if same else None


def _alike(one: Message, other: Message) -> bool:
    return (
        one.role == other.role
        and (one.text, one.images) == (other.text, other.images)
        and one.tool_calls == other.tool_calls
        and one.tool_call_id == other.tool_call_id
    )


ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}


# -- reading bodies -------------------------------------------------------------------------------


def field(body: Body, name: str, kind: type, *, of: str) -> Any:
    """Return a required field, or raise `BadRequest`."""
    if name not in body:
        raise BadRequest(f"{of} lacks {name!r}")
    if not isinstance(body[name], kind):
        raise BadRequest(f"{name!r} of {of} is {type(body[name]).__name__}, wanted {kind.__name__}")
    return body[name]


def items(value: Any, *, of: str) -> list[Body]:
    """Return a list of objects, or raise `BadRequest`."""
    if not isinstance(value, list) or not all(isinstance(one, Mapping) for one in value):
        raise BadRequest(f"{of} must be a list of objects")
    return value


def role_of(body: Body, *names: str) -> Role:
    """Return a message's role, one of `names`."""
    name = field(body, "role", str, of="a message")
    if name not in names:
        raise BadRequest(f"a message's role is {name!r}; there are {', '.join(names)}")
    return ROLES[name]


def content_of(told: Any, read: Callable[[Body], str | Image], *, of: str) -> Content:
    """Return a text, or parts of which each is read by `read`; plain text where all are."""
    if told is None or isinstance(told, str):
        return told or ""
    return joined([read(part) for part in items(told, of=of)])


def joined(parts: Sequence[str | Image]) -> Content:
    """Return parts as plain text, where they are."""
    texts = [part for part in parts if isinstance(part, str)]
    return "".join(texts) if len(texts) == len(parts) else tuple(parts)


def check_function(tool: Body) -> None:
    """Raise `BadRequest` for a tool that the program does not call itself."""
    if tool.get("type") != "function":
        raise BadRequest(f"a tool is of type {tool.get('type')!r}; only functions can be offered")


def arguments_of(text: Any, *, of: str) -> Mapping[str, Any]:
    """Return a call's arguments, which travel as JSON text."""
    try:
        found = json.loads(text) if isinstance(text, str) else text
    except ValueError:
        found = None
    if not isinstance(found, Mapping):
        raise BadRequest(f"the arguments of {of} must be a JSON object in a string, got {text!r}")
    return found


def tool_call(id: Any, name: Any, arguments: Any) -> ToolCall:
    """Return a call that a program repeats, or raise `BadRequest`."""
    if not isinstance(id, str) or not isinstance(name, str):
        raise BadRequest(f"a tool call needs an id and a name, got {id!r} and {name!r}")
    return ToolCall(id, name, arguments_of(arguments, of=f"the call of {name!r}"))


def tool_schema(name: str, description: Any, parameters: Any) -> ToolSchema:
    """Return a function's schema as chat templates write it."""
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description or "",
            "parameters": parameters or {"type": "object", "properties": {}},
        },
    }


def refuse(body: Body, unsupported: Mapping[str, Any], *, of: str) -> None:
    """Raise `BadRequest` for a field with another value than the one there is."""
    for name, only in unsupported.items():
        if body.get(name, only) not in (only, None):
            raise BadRequest(f"{name!r} of {of} is {body[name]!r}, and only {only!r} is answered")
