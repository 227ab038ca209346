"""The conversations of one episode's program, as a tree of messages.

A request tells a whole conversation. What is known of it is found by content, so that a message and
an image are kept once however often they are told, and a program may go on with any conversation it
has had: of a sub-agent, of a branch, of one that it left for another.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agentrl.env import ToolSchema
from agentrl.message import Image, Message
from agentrl.rewards import drop_thoughts

MessageKeys = tuple[bytes, bytes]
"""Digests of a message as it is told, and of what is shown of it without the policy's thoughts."""


@dataclass(slots=True, eq=False)
class ConversationNode:
    """One message, after those of its parents."""

    message: Message | None
    """None at the root of the conversations with one set of tools."""
    keys: MessageKeys = (b"", b"")
    parent: "ConversationNode | None" = field(default=None, repr=False)
    turn: int | None = None
    """The turn in which the policy said it; None for a message of the program's."""
    children: "dict[bytes, ConversationNode]" = field(
        default_factory=dict[bytes, "ConversationNode"], repr=False
    )

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation up to here."""
        return tuple(message for _, message in self.list_messages())

    def continuation(self) -> tuple[int | None, tuple[Message, ...]]:
        """Return the latest turn before this message, and the messages after it.

        None, with the whole conversation, where the policy has said nothing in it.
        """
        before = self.parent
        while before is not None and before.turn is None:
            before = before.parent
        after = None if before is None else before.turn
        return after, tuple(message for _, message in self.list_messages(stop=before))

    def list_messages(
        self, stop: "ConversationNode | None" = None
    ) -> tuple[tuple[MessageKeys, Message], ...]:
        """Return the conversation up to here with its keys, from behind `stop` on."""
        pairs: list[tuple[MessageKeys, Message]] = []
        node: ConversationNode | None = self
        while node is not None and node is not stop and node.message is not None:
            pairs.append((node.keys, node.message))
            node = node.parent
        return tuple(reversed(pairs))


class ConversationTree:
    """All conversations of one episode. Memory is linear in the messages that differ."""

    def __init__(self) -> None:
        self._roots: dict[bytes, ConversationNode] = {}
        self._images: dict[bytes, Image] = {}

    def find(
        self, tools: Sequence[ToolSchema], messages: Iterable[tuple[MessageKeys, Message]]
    ) -> ConversationNode:
        """Return the end of a conversation, with the messages that are new in it added."""
        node = self._roots.setdefault(_digest([*tools]), ConversationNode(None))
        for keys, message in messages:
            exact, visible_key = keys
            child = node.children.get(exact)
            if child is None and message.role == "assistant":
                child = node.children.get(visible_key)
                child = None if child is None or child.turn is None else child
            if child is None:
                child = ConversationNode(self._intern_images(message), keys, node)
                node.children[exact] = child
            node = child
        return node

    def add_answer(self, node: ConversationNode, message: Message, turn: int) -> ConversationNode:
        """Return the end of a conversation with what the policy said in it."""
        exact, visible_key = keys = message_keys(message)
        child = node.children.get(exact)
        if child is None:
            child = node.children[exact] = ConversationNode(message, keys, node)
        child.turn = turn
        node.children[visible_key] = child
        return child

    def _intern_images(self, message: Message) -> Message:
        if not message.images:
            return message
        return replace(
            message,
            content=tuple(
                self._images.setdefault(bytes.fromhex(part.digest), part)
                if isinstance(part, Image)
                else part
                for part in message.content
            ),
        )


def message_keys(message: Message) -> MessageKeys:
    """Return by what a message is known again, however a program spells it.

    A call's arguments may be in another order, a whole number may have a decimal point, a text may
    be empty or absent; around what the policy said, white space does not count.
    """
    is_policy = message.role == "assistant"
    text = message.text.strip() if is_policy else message.text
    parts = [
        message.role,
        _locate_images(message),
        [[call.id, call.name, call.arguments] for call in message.tool_calls],
        message.tool_call_id,
    ]
    exact = _digest(parts, text)
    visible = drop_thoughts(text) if is_policy else text
    return exact, exact if visible == text else _digest(parts, visible.strip())


def _locate_images(message: Message) -> list[tuple[int, str]]:
    """Return the images of a message, each with the characters of text before it."""
    places: list[tuple[int, str]] = []
    count = 0
    for part in () if isinstance(message.content, str) else message.content:
        if isinstance(part, Image):
            places.append((count, part.digest))
        else:
            count += len(part)
    return places


def _digest(value: Any, text: str = "") -> bytes:
    """Return a digest of JSON and of a text, which may be long: hashing it lets others run."""
    head = json.dumps(_plain(value), sort_keys=True, ensure_ascii=False)
    digest = hashlib.sha256(head.encode(errors="surrogatepass"))
    digest.update(b"\0")
    digest.update(text.encode(errors="surrogatepass"))
    return digest.digest()


def _plain(value: Any) -> Any:
    """Return JSON in which equal numbers are written alike; the gateway bounds its depth."""
    match value:
        case Mapping():
            return {str(key): _plain(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        case list() | tuple():
            return [_plain(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
        case float() if value.is_integer():
            return int(value)
        case _:
            return value
