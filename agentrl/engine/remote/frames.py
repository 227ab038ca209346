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
from typing import Any

PROTOCOL = 4
"""Both sides speak the same one, or not at all."""
MAX_HEAD_BYTES = 2**26
_LENGTHS = struct.Struct("<IQ")


class Closed(Exception):
    """The other side is gone, or said something that is no frame."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One thing that was said."""

    head: dict[str, Any]
    body: bytes = b""

    def to_bytes(self) -> bytes:
        """Return the frame without its body, which follows."""
        head = json.dumps(self.head, separators=(",", ":")).encode()
        return _LENGTHS.pack(len(head), len(self.body)) + head


def write_frame(writer: asyncio.StreamWriter, frame: Frame) -> None:
    """Put a frame into the stream's buffer, whole."""
    writer.write(frame.to_bytes())
    if frame.body:
        writer.write(frame.body)


async def read_frame(reader: asyncio.StreamReader, *, max_body_bytes: int | None = None) -> Frame:
    """Return the next frame. Raises `Closed` at the end of the stream and for what is no frame."""
    try:
        head, body = _LENGTHS.unpack(await reader.readexactly(_LENGTHS.size))
        if head > MAX_HEAD_BYTES or (max_body_bytes is not None and body > max_body_bytes):
            raise Closed(f"a frame of {head} and {body} bytes is beyond all bounds")
        said = json.loads(await reader.readexactly(head))
        if not isinstance(said, dict):
            raise Closed(f"a frame must hold an object, got {said!r:.80}")
        return Frame(said, await reader.readexactly(body))  # pyright: ignore[reportUnknownArgumentType]
    except (asyncio.IncompleteReadError, OSError, ValueError) as error:
        raise Closed(f"the connection ended ({type(error).__name__})") from error


def new_nonce() -> str:
    """Return what a client has to answer with `proof`, once."""
    return secrets.token_hex(32)


def proof(key: bytes, nonce: str) -> str:
    """Return what only who has the key can say about a nonce; the key itself never travels."""
    return hmac.new(key, nonce.encode(), hashlib.sha256).hexdigest()


def is_proof(said: object, key: bytes, nonce: str) -> bool:
    """Return whether `said` is the proof, in a time that says nothing about it."""
    return isinstance(said, str) and hmac.compare_digest(said.encode(), proof(key, nonce).encode())
