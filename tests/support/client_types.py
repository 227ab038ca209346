"""What the official clients' own types say of bodies that a gateway sends.

`python client_types.py` reads a JSON list of `[kind, body]` from stdin and writes what is wrong
with them, a JSON list of texts, with the clients of the interpreter that runs it.
"""

import json
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

from anthropic.types import Message, RawMessageStreamEvent
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter, ValidationError

TYPES: dict[str, Any] = {
    "chat": ChatCompletion,
    "chat_stream": ChatCompletionChunk,
    "responses": Response,
    "responses_stream": ResponseStreamEvent,
    "messages": Message,
    "messages_stream": RawMessageStreamEvent,
}
"""By protocol, whole and as one event of a stream."""


def find_faults(kind: str, body: Any) -> Iterator[str]:
    """Yield what a client's type finds wrong with a body."""
    try:
        _validate(kind, body)
    except ValidationError as error:
        yield f"{kind}: {error}"


def find_unknown(kind: str, body: Any) -> Iterator[str]:
    """Yield the fields of a valid body that a client's type does not know."""
    yield from _find_unknown(_validate(kind, body))


def _validate(kind: str, body: Any) -> Any:
    return _build_adapter(kind).validate_json(json.dumps(body), strict=True)


@cache
def _build_adapter(kind: str) -> TypeAdapter[Any]:
    return TypeAdapter[Any](TYPES[kind])  # seconds for the events of a stream


def _find_unknown(found: Any) -> Iterator[str]:
    if isinstance(found, list | tuple):
        for one in found:  # pyright: ignore[reportUnknownVariableType]
            yield from _find_unknown(one)
    if isinstance(found, BaseModel):
        for name in found.model_extra or ():
            yield f"{type(found).__name__}.{name}"
        for name in type(found).model_fields:
            yield from _find_unknown(getattr(found, name))


if __name__ == "__main__":
    faults = [fault for kind, body in json.load(sys.stdin) for fault in find_faults(kind, body)]
    sys.stdout.write(json.dumps(faults))
