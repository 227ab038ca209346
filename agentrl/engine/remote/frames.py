"""Frames on a stream: a JSON object, and bytes that it describes.

8 bytes   lengths of both, little-endian
JSON      what is said
bytes     arrays of numbers, weights
"""

import asyncio
import hashlib
import hmac
import json
import secrets
import struct
from dataclasses import dataclass
from typing import Any, cast

from agentrl.runtime.json_limits import JsonLimits, read_json

PROTOCOL = 5
"""Both sides speak the same one, or not at all."""
HEAD_LIMITS = JsonLimits()
"""Limits of a head between a client and a server that know each other. Numbers by the thousand are
in bodies."""
GREETING_LIMITS = JsonLimits(text_bytes=2**12, depth=4, values=64)
"""Limits of a head before the key is proved."""
_LENGTHS = struct.Struct("<IQ")


class FrameStreamClosed(Exception):
    """The other side is gone, or said something that is no frame."""


@dataclass(frozen=True, slots=True)
class EngineFrame:
    """One thing that was said."""

    head: dict[str, Any]
    body: bytes = b""

    def to_bytes(self) -> bytes:
        """Return the frame without its body, which follows."""
        head = json.dumps(self.head, separators=(",", ":")).encode()
        return _LENGTHS.pack(len(head), len(self.body)) + head


def write_frame(writer: asyncio.StreamWriter, frame: EngineFrame) -> None:
    """Put a frame into the stream's buffer, whole."""
    writer.write(frame.to_bytes())
    if frame.body:
        writer.write(frame.body)


async def read_greeting(reader: asyncio.StreamReader) -> EngineFrame:
    """Return a frame of somebody who has proved nothing yet: short, and without a body.

    Raises `FrameStreamClosed` as `read_frame` does.
    """
    return await read_frame(reader, limits=GREETING_LIMITS, max_body_bytes=0)


async def read_frame(
    reader: asyncio.StreamReader,
    *,
    limits: JsonLimits = HEAD_LIMITS,
    max_body_bytes: int | None = None,
) -> EngineFrame:
    """Return the next frame; raise `FrameStreamClosed` at the end, and for what is no frame."""
    try:
        head, body = _LENGTHS.unpack(await reader.readexactly(_LENGTHS.size))
        if head > limits.text_bytes or (max_body_bytes is not None and body > max_body_bytes):
            raise FrameStreamClosed(
                f"a frame with a head of {head} and a body of {body} bytes exceeds the limits"
            )
        header = read_json(await reader.readexactly(head), limits)
        if not isinstance(header, dict):
            raise FrameStreamClosed(f"a frame must contain a JSON object, got {header!r:.80}")
        return EngineFrame(cast("dict[str, Any]", header), await reader.readexactly(body))
    except (asyncio.IncompleteReadError, OSError, ValueError) as error:
        raise FrameStreamClosed(f"the connection ended ({type(error).__name__})") from error


def new_nonce() -> str:
    """Return a nonce that a client has to answer with `proof`, once."""
    return secrets.token_hex(32)


def proof(key: bytes, nonce: str) -> str:
    """Return the HMAC of a nonce, which proves the key; the key itself never travels."""
    return hmac.new(key, nonce.encode(), hashlib.sha256).hexdigest()


def is_proof(said: object, key: bytes, nonce: str) -> bool:
    """Return whether `said` is the proof, in a time that says nothing about it."""
    return isinstance(said, str) and hmac.compare_digest(said.encode(), proof(key, nonce).encode())
