"""Texts and images that a `describe` function returns, in one form."""

import io
import struct
import zlib
from collections.abc import Callable, Sequence
from inspect import Parameter, signature
from typing import Any, cast

import numpy as np

Part = str | tuple[bytes, str]
"""Text, or an encoded image with its MIME type."""

_HEADS = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"RIFF", "image/webp"),
)
_COLOUR_TYPES = {1: 0, 3: 2, 4: 6}
"""PNG's number of a colour type, by the channels of a pixel."""
_PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I", "I;16")
"""PIL's modes that PNG has; others, such as CMYK, are converted."""
_WAY_OUT = (
    "return a text, or a list of texts and images (PNG, JPEG, WebP or GIF bytes, a PIL image, or "
    "an array of uint8 of shape (height, width), or with 1, 3 or 4 channels)"
)


class WordingFault(Exception):
    """A `describe` or `act` function raised, or returned what cannot be shown; names it."""


def name_function(function: Any) -> str:
    """Return `module:name` of a function."""
    return f"{function.__module__}:{getattr(function, '__qualname__', type(function).__name__)}"


def count_parameters(function: Callable[..., Any], most: int) -> int:
    """Return the number of values, of `most`, that a function asks for: those without a default.

    Raises `ValueError` for a function that takes none by position, or asks for more.
    """
    try:
        parameters = signature(function).parameters.values()
    except ValueError:
        return 1  # a class or function written in C, which does not say
    if any(p.kind is Parameter.VAR_POSITIONAL for p in parameters):
        return most
    kinds = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    required = [p for p in parameters if p.default is Parameter.empty]
    positional = [p for p in required if p.kind in kinds]
    has_more = any(p.kind is Parameter.KEYWORD_ONLY for p in required) or len(positional) > most
    if has_more or not any(p.kind in kinds for p in parameters):
        raise ValueError(
            f"{name_function(function)}{signature(function)} must take 1 to {most} values by "
            "position"
        )
    return max(1, len(positional))


def describe_observation(describe: Callable[..., Any], *values: Any) -> list[Part]:
    """Call a `describe` function with as many of the values as it takes.

    Raises `WordingFault`.
    """
    name = name_function(describe)
    try:
        described = describe(*values[: count_parameters(describe, len(values))])
        return list(_read_parts(described))
    except (Exception, SystemExit) as error:
        raise WordingFault(f"describe={name}: {type(error).__name__}: {error}") from error


def _read_parts(described: Any) -> list[Part]:
    parts = cast("Sequence[Any]", described if isinstance(described, list | tuple) else [described])
    if not parts:
        raise TypeError(f"it returned an empty {type(described).__name__}; {_WAY_OUT}")
    return [part if isinstance(part, str) else _encode_image(part) for part in parts]


def _encode_image(image: Any) -> Part:
    """Return an image that is encoded; raise `TypeError` or `ValueError` for what is none."""
    if isinstance(image, bytes):
        for head, media_type in _HEADS:
            if image.startswith(head):
                return image, media_type
        raise ValueError(f"it returned bytes that begin with {image[:8]!r}; {_WAY_OUT}")
    if isinstance(data := getattr(image, "data", None), bytes) and hasattr(image, "media_type"):
        return data, str(image.media_type)
    if isinstance(image, np.ndarray):
        return _encode_png(cast("np.ndarray[Any, np.dtype[Any]]", image)), "image/png"
    if hasattr(image, "save") and hasattr(image, "mode"):
        file = io.BytesIO()
        (image if image.mode in _PNG_MODES else image.convert("RGB")).save(file, "PNG")
        return file.getvalue(), "image/png"
    raise TypeError(f"it returned a {type(image).__name__}; {_WAY_OUT}")


def _encode_png(pixels: "np.ndarray[Any, np.dtype[Any]]") -> bytes:
    """Encode an array of shape (height, width) or (height, width, channels) as PNG."""
    channels = 1 if pixels.ndim == 2 else pixels.shape[-1] if pixels.ndim == 3 else 0
    if pixels.dtype != np.uint8 or channels not in _COLOUR_TYPES or 0 in pixels.shape:
        raise ValueError(
            f"it returned an array of {pixels.dtype} of shape {pixels.shape}; {_WAY_OUT}"
        )
    height, width = pixels.shape[:2]
    head = struct.pack(">IIBBBBB", width, height, 8, _COLOUR_TYPES[channels], 0, 0, 0)
    lines = np.zeros((height, 1 + width * channels), np.uint8)  # each begins with its filter, none
    lines[:, 1:] = pixels.reshape(height, -1)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(lines.tobytes(), 1)), (b"IEND", b""))
    return _HEADS[0][0] + b"".join(_build_chunk(name, data) for name, data in chunks)


def _build_chunk(name: bytes, data: bytes) -> bytes:
    check = struct.pack(">I", zlib.crc32(name + data))
    return struct.pack(">I", len(data)) + name + data + check
