"""Frames: a length-prefixed JSON object and a blob. The one format of all three channels.

Never pickle: what arrives was perhaps written by a model. Both lengths are capped, and a frame that
breaks the format raises `FrameError`, which ends the channel.
"""

import json
import struct
from typing import Any, NamedTuple

HEADER = struct.Struct(">II")
JSON_BYTES_MAX = 16 * 2**20
BLOB_BYTES_MAX = 2**30
FIGURES_MAX = 4
FIGURE_BYTES_MAX = 2**20
START_S = 20.0
"""Deadline for an interpreter to start or to fork; both ends of a channel go by it."""


class FrameError(Exception):
    """The other side does not speak the protocol."""


class ChannelFrame(NamedTuple):
    """One message."""

    body: dict[str, Any]
    blob: bytes = b""


def encode(body: dict[str, Any], blob: bytes = b"") -> bytes:
    """Return the bytes of one frame; `FrameError` when it is over the caps."""
    text = json.dumps(body, separators=(",", ":")).encode()
    if len(text) > JSON_BYTES_MAX or len(blob) > BLOB_BYTES_MAX:
        raise FrameError(
            f"a frame with {len(text)} bytes of JSON and {len(blob)} bytes of data exceeds the "
            f"limits of {JSON_BYTES_MAX} and {BLOB_BYTES_MAX}; send less at once"
        )
    return HEADER.pack(len(text), len(blob)) + text + blob


class ChannelFrameReader:
    """Cuts a stream of bytes into frames."""

    def __init__(
        self, *, json_bytes_max: int = JSON_BYTES_MAX, blob_bytes_max: int = BLOB_BYTES_MAX
    ) -> None:
        self._buffer = bytearray()
        self._json_max = json_bytes_max
        self._blob_max = blob_bytes_max

    def feed(self, data: bytes) -> list[ChannelFrame]:
        """Return the frames that `data` completes; `FrameError` at the first broken one.

        Every byte is copied a fixed number of times, however many frames there are.
        """
        self._buffer += data
        frames: list[ChannelFrame] = []
        start = 0
        with memoryview(self._buffer) as view:
            while len(view) - start >= HEADER.size:
                text_bytes, blob_bytes = HEADER.unpack_from(view, start)
                if text_bytes > self._json_max or blob_bytes > self._blob_max:
                    raise FrameError(
                        f"a frame announces {text_bytes} + {blob_bytes} bytes, which exceeds the "
                        "limit"
                    )
                middle = start + HEADER.size + text_bytes
                end = middle + blob_bytes
                if end > len(view):
                    break
                body = _parse(bytes(view[start + HEADER.size : middle]))
                frames.append(ChannelFrame(body, bytes(view[middle:end])))
                start = end
        del self._buffer[:start]
        return frames


def _parse(text: bytes) -> dict[str, Any]:
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"a frame is not JSON: {type(error).__name__}") from error
    if not isinstance(body, dict):
        raise FrameError("a frame is not a JSON object")
    return body
