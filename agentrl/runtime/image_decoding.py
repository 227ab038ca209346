"""Encoded pictures to pixels: the one place where picture files are opened.

An environment, a page or a program chose the bytes. What they are is said by their head, which is
read here and compared with the limits before a decoder sees them: a decoder unpacks profiles and
notes of the head too. What cannot be read is an `EnvError`, whatever the decoder raises.
"""

import io
import struct
from typing import TYPE_CHECKING, Final

from agentrl.errors import EnvError, blame
from agentrl.message import Image

if TYPE_CHECKING:
    import PIL.Image

FORMATS: Final = ("PNG", "JPEG", "WEBP", "GIF")
"""Formats that are read. Pillow knows forty more, one of which starts a program."""
MAX_BYTES: Final = 16 * 2**20
"""Bytes of one encoded picture."""
MAX_PIXELS: Final = 2**24
"""Pixels of one picture: 5120 x 2880 and a little more. In colours they are 48 MiB."""
MAX_SCANS: Final = 100
"""Scans of one JPEG, each over the whole picture; files that are not made up have ten. It is the
limit of colour profiles and of Exif segments too, of which files have one."""
MAX_MARKERS: Final = 10_000
"""Markers of one JPEG before its first scan; files that are not made up have hundreds."""
MAX_READS: Final = 40_000
"""Pieces in which the decoder reads one file: four for each chunk of a PNG, of which 16 MiB have
two thousand."""
_JPEG = b"\xff\xd8\xff"
_PNG = b"\x89PNG\r\n\x1a\n"
_REPEATABLE: Final = (
    (_JPEG, b"\xff\xda", "scans"),
    (_JPEG, b"Exif\0\0", "Exif segments"),
    (_PNG, b"iCCP", "colour profiles"),
)
"""Parts that cost a decoder much each time, by how a file and a part begin, and their name."""
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Markers of a JPEG that are followed by its size."""
_BARE = frozenset({0x00, 0x01, *range(0xD0, 0xDA), 0xFF})
"""Markers of a JPEG without a length, and bytes that make none of what is before them."""
_SCAN = 0xDA


def read_size(image: Image) -> tuple[int, int]:
    """Return width and height in pixels, from the head of the file. It takes a few milliseconds.

    Raises `EnvError` for what is no picture, and for one over a limit.
    """
    data = image.data
    if len(data) > MAX_BYTES:
        raise EnvError(
            f"{_describe(image)} exceed the limit of {MAX_BYTES}; return a smaller image"
        )
    try:
        width, height = _find_jpeg_size(image) if data.startswith(_JPEG) else _find_size(data)
    except struct.error:  # the head is cut off
        width = height = 0
    if not width or not height:
        raise EnvError(_tell_formats(image))
    if width * height > MAX_PIXELS:
        raise EnvError(
            f"{_describe(image)} have {width} x {height} pixels, but the limit is {MAX_PIXELS}; "
            "return a smaller image"
        )
    return width, height


def decode_image(image: Image) -> "PIL.Image.Image":
    """Return the pixels, (height, width) in RGB; of a moving picture those of its first frame.

    Raises as `read_size` does. It takes up to half a second: where a loop runs, call it in a
    thread.
    """
    import PIL.Image

    size = read_size(image)
    for beginning, mark, name in _REPEATABLE:
        starts = image.data.startswith(beginning)
        if starts and (count := image.data.count(mark)) > MAX_SCANS:
            raise EnvError(
                f"{_describe(image)} have {count} {name}, but the limit is {MAX_SCANS}; return an "
                "image with fewer"
            )
    with blame(EnvError, _describe(image)):
        try:
            picture = PIL.Image.open(_PictureFile(image), formats=FORMATS)
        except PIL.UnidentifiedImageError as error:
            raise EnvError(_tell_formats(image)) from error
        if picture.size != size:
            raise EnvError(
                f"{_describe(image)} have {picture.width} x {picture.height} pixels, but their "
                f"head says {size[0]} x {size[1]}; encode the image anew"
            )
        return picture.convert("RGB")


class _PictureFile(io.BytesIO):
    """A picture's bytes, for a decoder that reads them in at most `MAX_READS` pieces."""

    def __init__(self, image: Image) -> None:
        super().__init__(image.data)
        self._image = image
        self._reads = 0

    def read(self, size: int | None = -1, /) -> bytes:
        self._reads += 1
        if self._reads > MAX_READS:
            raise EnvError(
                f"{_describe(self._image)} are read in more than {MAX_READS} pieces, which is the "
                "limit; return an image of fewer and longer chunks"
            )
        return super().read(size)


def _find_size(data: bytes) -> tuple[int, int]:
    """Return width and height of a PNG, GIF or WebP; zeros for anything else.

    A WebP says them in one of three ways: of a canvas, in a key frame, or without loss.
    """
    if data.startswith(_PNG):
        return struct.unpack_from(">II", data, 16)
    if data.startswith((b"GIF87a", b"GIF89a")):
        return struct.unpack_from("<HH", data, 6)
    kind = data[12:16] if data[:4] + data[8:12] == b"RIFFWEBP" else b""
    if kind == b"VP8X" and len(data) >= 30:
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", data, 26)
        return width & 0x3FFF, height & 0x3FFF
    if kind == b"VP8L":
        (sides,) = struct.unpack_from("<I", data, 21)
        return (sides & 0x3FFF) + 1, (sides >> 14 & 0x3FFF) + 1
    return 0, 0


def _find_jpeg_size(image: Image) -> tuple[int, int]:
    """Return width and height, which the last frame before the first scan says; else zeros."""
    data, at, width, height = image.data, 2, 0, 0
    for _ in range(MAX_MARKERS):
        at = data.find(b"\xff", at) + 1
        if not 0 < at < len(data):
            return 0, 0
        marker = data[at]
        if marker == _SCAN:
            return width, height
        if marker in _FRAMES:
            height, width = struct.unpack_from(">HH", data, at + 4)
        if marker not in _BARE:
            at += 1 + int.from_bytes(data[at + 1 : at + 3])
    raise EnvError(
        f"{_describe(image)} have more than {MAX_MARKERS} markers before the first scan, which is "
        "the limit; return an image with fewer"
    )


def _tell_formats(image: Image) -> str:
    return f"{_describe(image)} are not an image in a supported format ({', '.join(FORMATS)})"


def _describe(image: Image) -> str:
    return f"{len(image.data)} bytes declared as {image.media_type[:40]}"
