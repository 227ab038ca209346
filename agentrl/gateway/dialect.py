"""Questions of programs and their answers, whatever the protocol.

Pure: a protocol's bodies become a `ChatRequest`, a `GatewayAnswer` becomes a protocol's answer.
"""

import hashlib
import json
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agentrl.env import CallRule, ToolSchema, TurnRequest
from agentrl.gateway.answer import GatewayAnswer
from agentrl.gateway.conversations import MessageKeys
from agentrl.message import Content, Image, Message, Role, ToolCall
from agentrl.runtime.json_limits import JsonLimitError, JsonLimits, read_json

Body = Mapping[str, Any]
LARGEST_BYTES = 64 * 2**20
"""Limit of a request's body; screenshots make large ones."""
MOST_CHARACTERS = 16 * 2**20
"""Limit on all texts in a request's messages; the rest of a large body is images."""
BODY_LIMITS = JsonLimits(text_bytes=LARGEST_BYTES, values=200_000)

NO_LIMITS = TurnRequest()


class BadRequest(ValueError):
    """A request that cannot be answered; the text is for the program that sent it."""


class LongRequest(BadRequest):
    """A conversation that is longer than the policy's context. Programs shorten it and go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """One request for a message of the policy's."""

    messages: tuple[Message, ...]
    """The conversation as the program tells it."""
    instructions: str = ""
    """A system message before all others, in the place of the one before, where the protocol sends
    that apart."""
    tools: tuple[ToolSchema, ...] = ()
    model: str = ""
    """The program's name for the policy; given back, and of no other effect."""
    stream: bool = False
    stream_usage: bool = False
    """True to end a stream with the usage, where the protocol leaves that to the program."""
    after: str = ""
    """Id of the answer whose conversation comes before `messages`, where the protocol has that."""
    request: TurnRequest = NO_LIMITS
    is_retry: bool = False
    """True when the client says that it repeats a request that failed."""
    key: str = ""
    """The client's own name for the request; the same one for the same request. Empty for none."""


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One server-sent event of a streamed answer."""

    name: str
    """Empty where the protocol names none."""
    data: str


def check_texts(asked: ChatRequest) -> None:
    """Raise `BadRequest` for more text than any context holds."""
    count = len(asked.instructions) + sum(len(message.text) for message in asked.messages)
    if count > MOST_CHARACTERS:
        raise LongRequest(
            f"the messages have {count} characters, but the limit is {MOST_CHARACTERS}; send less"
        )


class ApiDialect(Protocol):
    """One protocol: requests read, answers written."""

    def read(self, body: Body, ignored: Container[str] = ()) -> ChatRequest:
        """Parse a request; `BadRequest` says what is wrong with it.

        `ignored` are names of fields that it may have all the same.
        """
        ...

    def answer(self, asked: ChatRequest, answer: GatewayAnswer) -> Body:
        """Return the body of the answer."""
        ...

    def events(self, asked: ChatRequest, answer: GatewayAnswer) -> Iterator[StreamEvent]:
        """Yield the answer as a stream."""
        ...

    def error(self, status: int, text: str, *, is_too_long: bool = False) -> Body:
        """Return the body of an error; one for a request that is too long in the words by which
        clients know it."""
        ...


ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}


def digest_conversation(body: Body) -> bytes:
    """Return a digest of the conversation in a body, whatever else the body asks for."""
    parts = [body.get(name) for name in _CONVERSATION]
    return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=16).digest()


def digest_content(asked: ChatRequest, keys: Sequence[MessageKeys]) -> bytes:
    """Return a digest of the conversation in a request that was read; `keys` are its messages'."""
    parts = [
        asked.after.encode(),
        b"\0",
        asked.instructions.encode(),
        *(exact for exact, _ in keys),
    ]
    return hashlib.blake2b(b"".join(parts), digest_size=16).digest()


_CONVERSATION = ("messages", "system", "input", "instructions", "previous_response_id")
"""Fields of a body with the conversation, in all protocols."""

# -- reading bodies -------------------------------------------------------------------------------


def field(body: Body, name: str, kind: type, *, of: str) -> Any:
    """Return a required field, or raise `BadRequest`."""
    if name not in body:
        raise BadRequest(f"{of} lacks {name!r}")
    if not isinstance(body[name], kind):
        raise BadRequest(
            f"{name!r} of {of} is {type(body[name]).__name__}, expected {kind.__name__}"
        )
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
        raise BadRequest(f"a message has role {shorten(name)}; the roles are {', '.join(names)}")
    return ROLES[name]


def content_of(told: Any, read: Callable[[Body], str | Image], *, of: str) -> Content:
    """Return a text, or parts of which each is read by `read`; plain text where all are."""
    if told is None or isinstance(told, str):
        return told or ""
    return join_parts([read(part) for part in items(told, of=of)])


def join_parts(parts: Sequence[str | Image]) -> Content:
    """Return parts as plain text, where they are."""
    texts = [part for part in parts if isinstance(part, str)]
    return "".join(texts) if len(texts) == len(parts) else tuple(parts)


def check_function(tool: Body) -> None:
    """Raise `BadRequest` for a tool that the program does not call itself."""
    if tool.get("type") != "function":
        kind = shorten(tool.get("type"))
        raise BadRequest(f"a tool has type {kind}; only functions are supported")


def arguments_of(text: Any, *, of: str) -> Mapping[str, Any]:
    """Return a call's arguments, which travel as JSON text."""
    try:
        arguments = read_json(text, BODY_LIMITS) if isinstance(text, str) else text
    except JsonLimitError as error:
        raise BadRequest(f"the arguments of {of} cannot be parsed: {error}") from error
    if not isinstance(arguments, Mapping):
        raise BadRequest(
            f"the arguments of {of} must be a JSON object in a string, got {shorten(text)}"
        )
    return arguments  # pyright: ignore[reportUnknownVariableType]


def tool_call(id: Any, name: Any, arguments: Any) -> ToolCall:
    """Return a call that a program repeats, or raise `BadRequest`."""
    if not isinstance(id, str) or not isinstance(name, str):
        raise BadRequest(
            f"a tool call needs an id and a name, got {shorten(id)} and {shorten(name)}"
        )
    return ToolCall(id, name, arguments_of(arguments, of=f"the call of {shorten(name)}"))


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


# -- fields that say how the policy speaks --------------------------------------------------------

_WAY_OUT = "remove it, or list it in the environment's ignore_fields"
SAMPLING = frozenset(
    {
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "seed",
        "frequency_penalty",
        "presence_penalty",
        "repetition_penalty",
        "logit_bias",
    }
)
"""Fields that the run's config decides."""
INERT = frozenset(
    {
        "metadata",
        "user",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "stream_options",
    }
)
"""Fields that change no answer."""
_MOST_STOPS = 16
_LONGEST_STOP = 100


def check_fields(
    body: Body,
    *,
    heard: Container[str],
    only: Mapping[str, Sequence[Any]],
    ignored: Container[str],
) -> None:
    """Raise `BadRequest` for a field of a request that would not be honoured.

    `heard` are those that are, `only` those of which the named values are all there is.
    """
    for name, value in body.items():
        if name in heard or name in INERT or name in ignored or value in (None, {}):
            continue
        if name in only and any(value == one and type(value) is type(one) for one in only[name]):
            continue
        if name in only:
            fault = (
                f"but only {only[name][0]!r} is supported"
                if only[name]
                else "which is not supported"
            )
            raise BadRequest(f"{name!r} of the request is {shorten(value)}, {fault}; {_WAY_OUT}")
        if name in SAMPLING:
            raise BadRequest(
                f"{name!r} of the request is {shorten(value)}, but the run's config determines "
                f"how the policy is sampled; {_WAY_OUT}"
            )
        raise BadRequest(f"{shorten(name)} of the request is not a supported field; {_WAY_OUT}")


def check_named(told: Body, ignored: Container[str]) -> None:
    """Raise `BadRequest` for a speaker's name, which templates do not show."""
    if told.get("name") is not None and "name" not in ignored:
        raise BadRequest(
            f"'name' of a message is {shorten(told['name'])}, but names of speakers are not "
            f"shown to the policy; {_WAY_OUT}"
        )


def read_unless_ignored(body: Body, name: str, ignored: Container[str]) -> Any:
    """Return the value of a field that is heard unless the environment ignores it."""
    return None if name in ignored else body.get(name)


ToolChoice = tuple[CallRule, str]
"""A rule on calls, and the only tool it allows; empty for any."""
AS_IT_LIKES: ToolChoice = ("auto", "")
RULES: Mapping[str, CallRule] = {"auto": "auto", "none": "none", "required": "required"}
"""As OpenAI's protocols spell them."""


def tool_choice(
    told: Any, *, rule: CallRule | None, name: Any, tools: Sequence[ToolSchema]
) -> ToolChoice:
    """Return the choice of a `tool_choice`: calls of the tool `name`, if that is a text, or `rule`.

    Raises `BadRequest` where it says neither, and for a call of what the request does not offer.
    """
    if told is None:
        return AS_IT_LIKES
    subject = f"'tool_choice' of the request is {shorten(told)}"
    offered = [tool["function"]["name"] for tool in tools]
    if isinstance(name, str) and name:
        rule, offered = "required", [one for one in offered if one == name]
    if rule is None:
        raise BadRequest(f"{subject}, which is not supported; {_WAY_OUT}")
    if rule == "required" and not offered:
        raise BadRequest(f"{subject}, but the request offers no such tool; add it, or {_WAY_OUT}")
    return rule, name or ""


def turn_request(
    *, max_tokens: Sequence[Any], stop: Any = None, choice: ToolChoice = AS_IT_LIKES
) -> TurnRequest:
    """Return the limits of a request, the smallest of several on tokens; None sets none."""
    limits = [limit for limit in max_tokens if limit is not None]
    for limit in limits:
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
            raise BadRequest(f"a limit on tokens is {shorten(limit)}; give a whole number from 1")
    stops: Any = [stop] if isinstance(stop, str) else stop or []
    if not isinstance(stops, list) or len(stops) > _MOST_STOPS:  # pyright: ignore[reportUnknownArgumentType]
        raise BadRequest(f"'stop' must be text or a list of at most {_MOST_STOPS} texts")
    for one in stops:  # pyright: ignore[reportUnknownVariableType]
        if not isinstance(one, str) or not 0 < len(one) <= _LONGEST_STOP:
            raise BadRequest(
                f"a stop string is {shorten(one)}; use text of 1 to {_LONGEST_STOP} characters"
            )
    calls, tool = choice
    most = min(limits, default=None)
    return TurnRequest(max_tokens=most, stop=tuple(stops), calls=calls, tool=tool)  # pyright: ignore[reportUnknownArgumentType]


def shorten(value: Any) -> str:
    """Return a value for an error, cut."""
    return repr(value if isinstance(value, int | float | bool) else str(value)[:80])[:80]
