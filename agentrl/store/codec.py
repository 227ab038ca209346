"""Values to bytes and back, exactly, by a closed list of types. Nothing here can run code.

A payload is JSON, which keeps everything but tokens readable in a hex dump, then the arrays of its
nodes as little-endian numbers: ids (4 bytes each), versions (4), log-probs (8) and entropies (8).
JSON lacks tuples, bytes, sets and keys that are no text; they are written as `{"$tuple": [...]}`
and so on.
"""

import base64
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Protocol, cast

from agentrl.env import Action, Observation, TurnRequest, TurnUsage
from agentrl.events.kinds import KINDS, EnvExchange, Event, ForkPoint, GroupRequest
from agentrl.message import Image, Message, ToolCall
from agentrl.store.blobs import BlobStore
from agentrl.store.errors import DamagedStore, StoreError
from agentrl.store.record import LogRecord
from agentrl.store.trajectory_copy import TrajectoryCopy
from agentrl.task import Task
from agentrl.trajectory import Failed, Finished, Leaf, Node, Truncated

_LENGTH = struct.Struct("<I")
MAX_DEPTH = 256
"""Depth limit of a record's JSON. A call's arguments are 64 deep, a level at most three here."""
_JSON = json.JSONEncoder(separators=(",", ":"), check_circular=False)
"""Of what `_Encoder.plain` makes, in which nothing contains itself."""

_TOO_DEEP = (
    f"a value is nested too deeply: its record would have more than {MAX_DEPTH} levels; flatten "
    "tasks, actions, and observations"
)

_PLAIN_TYPES: tuple[type[Any], ...] = (
    *KINDS,
    *(EnvExchange, ForkPoint, GroupRequest, Action, Message, ToolCall, Task, Leaf),
    *(Finished, Truncated, Failed, TrajectoryCopy, TurnRequest, TurnUsage),
)
_BY_NAME = {kind.__name__: kind for kind in _PLAIN_TYPES}
_AS_THEY_ARE = frozenset({str, int, float, bool, type(None)})
_FIELDS = {kind: tuple(field.name for field in fields(kind)) for kind in _PLAIN_TYPES}


def encode(event: Event, objects: BlobStore) -> tuple[int, bytes]:
    """Return an event's kind and payload; images and tool schemas go to `objects` first.

    Raises `ValueError` for a value of a type that cannot be read back.
    """
    return KINDS.index(type(event)), _pack_value(event, objects)


def pack(value: Any) -> bytes:
    """Return a value of the types that events hold as bytes that hold its images too.

    Raises `ValueError` for a value of a type that `unpack` could not make again exactly.
    """
    return _pack_value(value, _Inline())


def unpack(data: bytes) -> Any:
    """Return the value that `pack` was given."""
    return _unpack_value(data, _Inline())


class BlobReader(Protocol):
    """Storage of images and tool schemas, by name."""

    def put(self, data: bytes) -> str:
        """Return the name of some bytes, for `get`."""
        ...

    def get(self, digest: str) -> bytes:
        """Return the bytes of a name."""
        ...


class _Inline:
    """Bytes that are their own name."""

    def put(self, data: bytes) -> str:
        return base64.b85encode(data).decode()

    def get(self, digest: str) -> bytes:
        return base64.b85decode(digest)


def decode(record: LogRecord, objects: BlobStore | None) -> Event:
    """Return the event of a record; raises `StoreError` for one of another version.

    Without `objects`, images come back empty and tools as None: for those who look at neither.
    """
    try:
        event = _unpack_value(record.payload, objects)
    except (RecursionError, ValueError, struct.error) as error:
        damage = (
            f"record {record.sequence} was not written by agentrl ({type(error).__name__}: "
            f"{error!s:.200})"
        )
        raise DamagedStore(
            f"{damage}; restore the store from a copy, or resume before the damage with agentrl "
            "train --resume --cut-damaged",
            damage=damage,
        ) from error
    except (KeyError, TypeError, AttributeError) as error:
        raise StoreError(
            f"record {record.sequence} was written by another version of agentrl ({error}); read "
            "the store with that version"
        ) from error
    return cast(Event, event)


def _pack_value(value: Any, objects: BlobReader) -> bytes:
    arrays: list[bytes] = []
    try:
        plain = _Encoder(objects, arrays).plain(value)
        encoded = _JSON.encode(plain)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    if encoded.count("[") + encoded.count("{") > MAX_DEPTH and not _is_shallow(plain):
        raise ValueError(_TOO_DEEP)
    text = encoded.encode()
    return b"".join((_LENGTH.pack(len(text)), text, *arrays))


def _unpack_value(data: bytes, objects: BlobReader | None) -> Any:
    (length,) = _LENGTH.unpack_from(data)
    start = _LENGTH.size
    plain = json.loads(data[start : start + length])
    return _Decoder(objects, data, start + length).value(plain)


def _is_shallow(plain: Any) -> bool:
    """Return whether `_Decoder` can read a value again, however much of the stack is in use."""
    level = [plain]
    for _ in range(MAX_DEPTH):
        if not level:
            return True
        level = [
            inner
            for item in level
            if isinstance(item, list | dict)
            for inner in cast("list[Any]", item.values() if isinstance(item, dict) else item)
        ]
    return not level


class _Encoder:
    def __init__(self, objects: BlobReader, arrays: list[bytes]) -> None:
        self._objects = objects
        self._arrays = arrays

    def plain(self, value: Any) -> Any:
        """Return `value` as JSON knows it."""
        kind: type[Any] = type(value)
        # By exact type first: that is nearly every value, and a chain of `isinstance` costs.
        if kind in _AS_THEY_ARE:
            return value
        if kind is tuple or kind is list:
            items = [
                item if type(item) in _AS_THEY_ARE else self.plain(item)
                for item in cast(Sequence[Any], value)
            ]
            return items if kind is list else {"$tuple": items}
        if (names := _FIELDS.get(kind)) is not None:
            return self._object(kind.__name__, names, value)
        if kind is dict:
            return self._mapping(value)
        match value:
            case Node():
                return {"$node": self._node(value)}
            case Image():
                return {"$image": [self._objects.put(value.data), value.media_type]}
            case Observation():
                tools = None if value.tools is None else self._store_tools(value.tools)
                unhinted = self.plain(value.unhinted)
                rare = [value.anew, value.after, self.plain(value.request), unhinted]
                while rare and (rare[-1] is None or rare[-1] is False):
                    rare.pop()
                return {"$observation": [self.plain(value.messages), tools, *rare]}
            case str() | int() | float():
                return value
            case tuple():
                return self.plain(tuple(cast(tuple[Any, ...], value)))
            case list():
                return self.plain(list(cast(list[Any], value)))
            case Mapping():
                return self._mapping(cast(Mapping[Any, Any], value))
            case bytes():
                return {"$bytes": base64.b85encode(value).decode()}
            case set() | frozenset():
                items = [self.plain(item) for item in cast(set[Any], value)]
                name = "$set" if isinstance(value, set) else "$frozenset"
                return {name: sorted(items, key=json.dumps)}
            case _:
                raise ValueError(
                    f"a {kind.__name__} cannot be recorded: {value!r:.80}; tasks, actions, and "
                    "observations may hold text, numbers, booleans, None, bytes, and collections "
                    "of them"
                )

    def _object(self, kind: str, names: tuple[str, ...], value: Any) -> dict[str, Any]:
        record: dict[str, Any] = {"$": kind}
        for name in names:
            part = getattr(value, name)
            record[name] = part if type(part) in _AS_THEY_ARE else self.plain(part)
        return record

    def _mapping(self, value: Mapping[Any, Any]) -> Any:
        for key in value:
            if not isinstance(key, str) or key.startswith("$"):
                return {"$dict": [[self.plain(k), self.plain(item)] for k, item in value.items()]}
        return {key: self.plain(item) for key, item in value.items()}

    def _store_tools(self, tools: Sequence[Any]) -> str:
        text = _JSON.encode([self.plain(tool) for tool in tools])
        return self._objects.put(text.encode())

    def _node(self, node: Node) -> list[Any]:
        count, entropy_count = len(node.token_ids), len(node.entropies)
        if node.source == "sampled":
            shape = f"<{count}I{count}i{count}d{entropy_count}d"
            numbers = (*node.token_ids, *node.versions, *node.logprobs, *node.entropies)
        else:
            shape, numbers = f"<{count}I{entropy_count}d", (*node.token_ids, *node.entropies)
        self._arrays.append(struct.pack(shape, *numbers))
        images = [self.plain(image) for image in node.images]
        rare: list[Any] = [node.withdraws, list(map(list, node.image_spans)), node.resumes]
        while rare and not rare[-1]:
            rare.pop()
        head = [node.parent, node.source, node.turn, node.seconds, node.tool_status]
        return [*head, images, count, entropy_count, *rare]


class _Decoder:
    def __init__(self, objects: BlobReader | None, payload: bytes, at: int) -> None:
        self._objects = objects
        self._payload = payload
        self._at = at

    def value(self, plain: Any) -> Any:
        """Return the value that `_Encoder.plain` was given."""
        if isinstance(plain, list):
            return [self.value(item) for item in cast(list[Any], plain)]
        if not isinstance(plain, dict):
            return plain
        plain = cast(dict[str, Any], plain)
        tag = next(iter(plain), "")
        if not tag.startswith("$"):
            return {key: self.value(item) for key, item in plain.items()}
        if tag == "$":
            kind = _BY_NAME[plain["$"]]
            return kind(**{key: self.value(item) for key, item in plain.items() if key != "$"})
        return self._decode_tagged(tag, plain[tag])

    def _decode_tagged(self, tag: str, inner: Any) -> Any:
        match tag:
            case "$tuple":
                return tuple(self.value(item) for item in inner)
            case "$node":
                return self._node(*inner)
            case "$image":
                return Image(self._objects.get(inner[0]) if self._objects else b"", inner[1])
            case "$observation":
                rare = map(self.value, inner[2:])
                return Observation(self.value(inner[0]), self._read_tools(inner[1]), *rare)
            case "$dict":
                return {self.value(key): self.value(item) for key, item in inner}
            case "$bytes":
                return base64.b85decode(inner)
            case "$set":
                return {self.value(item) for item in inner}
            case "$frozenset":
                return frozenset(self.value(item) for item in inner)
            case _:
                raise KeyError(tag)

    def _read_tools(self, digest: str | None) -> tuple[Any, ...] | None:
        if digest is None or self._objects is None:
            return None
        return self._decode_tuple(json.loads(self._objects.get(digest)))

    def _decode_tuple(self, plain: list[Any]) -> tuple[Any, ...]:
        return tuple(self.value(item) for item in plain)

    def _node(
        self,
        parent: int | None,
        source: Any,
        turn: int,
        seconds: float,
        tool_status: str,
        images: list[Any],
        count: int,
        entropies: int,
        withdraws: int = 0,
        image_spans: Sequence[Sequence[int]] = (),
        resumes: int = 0,
    ) -> Node:
        sampled = count if source == "sampled" else 0
        return Node(
            parent=parent,
            source=source,
            turn=turn,
            seconds=seconds,
            tool_status=tool_status,
            images=self._decode_tuple(images),
            image_spans=tuple((start, stop) for start, stop in image_spans),
            token_ids=self._read_numbers("I", count),
            versions=self._read_numbers("i", sampled),
            logprobs=self._read_numbers("d", sampled),
            entropies=self._read_numbers("d", entropies),
            withdraws=withdraws,
            resumes=resumes,
        )

    def _read_numbers(self, code: str, count: int) -> tuple[Any, ...]:
        shape = f"<{count}{code}"
        numbers = struct.unpack_from(shape, self._payload, self._at)
        self._at += struct.calcsize(shape)
        return numbers
