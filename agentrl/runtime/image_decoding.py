"""Encoded pictures to pixels: the one place where picture files are opened.

An environment, a page or a program chose the bytes. What they are is said by their head, which is
compared with the limits before a pixel is decoded; what cannot be read is an `EnvError`, whatever
the decoder raises.
"""

import io
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
"""Scans of one JPEG, each over the whole picture; files that are not made up have ten."""
_SCAN = b"\xff\xda"


def read_size(image: Image) -> tuple[int, int]:
    """Return width and height in pixels, from the head of the file.

    Raises `EnvError` for what is no picture, and for one over a limit.
    """
    return _open_picture(image).size


def decode_image(image: Image) -> "PIL.Image.Image":
    """Return the pixels, (height, width) in RGB; of a moving picture those of its first frame.

    Raises as `read_size` does. It takes up to half a second: where a loop runs, call it in a
    thread.
    """
    picture = _open_picture(image)
    with blame(EnvError, _describe(image)):
        return picture.convert("RGB")


def _open_picture(image: Image) -> "PIL.Image.Image":
    import PIL.Image

    data = image.data
    if len(data) > MAX_BYTES:
        raise EnvError(
            f"{_describe(image)} exceed the limit of {MAX_BYTES}; return a smaller image"
        )
    if data.startswith(b"\xff\xd8") and (scans := data.count(_SCAN)) > MAX_SCANS:
        raise EnvError(
            f"{_describe(image)} have {scans} scans, but the limit is {MAX_SCANS}; return an image "
            "with fewer"
        )
    if (size := _canvas(data)) is not None:
        _check_size(image, size)
    with blame(EnvError, _describe(image)):
        try:
            picture = PIL.Image.open(io.BytesIO(data), formats=FORMATS)
        except PIL.UnidentifiedImageError as error:
            formats = ", ".join(FORMATS)
            raise EnvError(
                f"{_describe(image)} are not an image in a supported format ({formats})"
            ) from error
    _check_size(image, picture.size)
    return picture


def _canvas(data: bytes) -> tuple[int, int] | None:
    """Return the canvas of an extended WebP, which its reader would make before it tells."""
    if data[:4] != b"RIFF" or data[8:16] != b"WEBPVP8X" or len(data) < 30:
        return None
    return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")


def _check_size(image: Image, size: tuple[int, int]) -> None:
    width, height = size
    if width * height > MAX_PIXELS:
        raise EnvError(
            f"{_describe(image)} have {width} x {height} pixels, but the limit is {MAX_PIXELS}; "
            "return a smaller image"
        )


def _describe(image: Image) -> str:
    return f"{len(image.data)} bytes declared as {image.media_type[:40]}"
