"""Picture files: limits are read from the head, and whatever a decoder raises is one error.

Mutants seen caught: no limit of pixels; one off; every format of Pillow; scans not counted; a
WebP's canvas not looked at.
"""

import ast
import base64
import io
import struct
import zlib
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image as Pictures

from agentrl.errors import EnvError
from agentrl.gateway.dialect import BadRequest
from agentrl.gateway.images import from_base64
from agentrl.message import Image
from agentrl.runtime.image_decoding import (
    FORMATS,
    MAX_BYTES,
    MAX_PIXELS,
    MAX_SCANS,
    decode_image,
    read_size,
)
from tests.support.watchdog import watched

ROOT = Path(__file__).parents[3]


def file_of(kind: str, size: tuple[int, int] = (8, 6)) -> bytes:
    out = io.BytesIO()
    Pictures.new("RGB", size, (200, 30, 40)).save(out, kind)
    return out.getvalue()


def png(width: int, height: int, pixels: bytes = b"") -> bytes:
    """Return a PNG that claims a size, with as much of its pixels as is given."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IDAT", zlib.compress(pixels)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + body


def webp(width: int, height: int) -> bytes:
    """Return an extended WebP that claims a canvas."""
    still = file_of("WEBP")[12:]
    sides = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    canvas = b"VP8X" + struct.pack("<I", 10) + bytes(4) + sides
    return b"RIFF" + struct.pack("<I", 4 + len(canvas + still)) + b"WEBP" + canvas + still


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_is_read(kind: str) -> None:
    image = Image(file_of(kind), f"image/{kind.lower()}")
    assert read_size(image) == (8, 6)
    picture = decode_image(image)
    assert (picture.mode, picture.size) == ("RGB", (8, 6))


@pytest.mark.parametrize("kind", ["BMP", "EPS", "TIFF", "ICO", "PPM", "PDF", "PCX"])
def test_no_other_format_is(kind: str) -> None:
    with pytest.raises(EnvError, match="bytes declared as image/png"):
        read_size(Image(file_of(kind)))


@watched
def test_the_limit_of_pixels_is_read_from_the_head() -> None:
    assert read_size(Image(png(4096, MAX_PIXELS // 4096))) == (4096, MAX_PIXELS // 4096)
    for data in (png(4096, MAX_PIXELS // 4096 + 1), webp(16383, 16383)):
        for read in (read_size, decode_image):
            with pytest.raises(EnvError, match=f"pixels, but the limit is {MAX_PIXELS}"):
                read(Image(data))
    with pytest.raises(EnvError, match="exceeds limit"):
        read_size(Image(png(65535, 65535)))


def test_a_file_has_a_limit_of_bytes_and_a_jpeg_one_of_scans() -> None:
    with pytest.raises(EnvError, match=f"exceed the limit of {MAX_BYTES}"):
        read_size(Image(file_of("PNG") + bytes(MAX_BYTES)))
    scans = b"\xff\xda\x00\x08\x01\x01\x00\x00\x3f\x00" * (MAX_SCANS + 1)
    with pytest.raises(EnvError, match=f"the limit is {MAX_SCANS}"):
        decode_image(Image(file_of("JPEG")[:-2] + scans + b"\xff\xd9", "image/jpeg"))


def test_what_is_cut_off_is_an_attributed_error() -> None:
    for data in (b"", b"GIF89a", png(8, 6), file_of("JPEG")[:-40], file_of("WEBP")[:-20]):
        with pytest.raises(EnvError, match="declared as image/png"):
            decode_image(Image(data))


@given(st.sampled_from(FORMATS), st.data())
def test_whatever_the_bytes_are_it_is_a_picture_or_an_attributed_error(
    kind: str, data: st.DataObject
) -> None:
    file = bytearray(file_of(kind))
    changes = data.draw(
        st.lists(st.tuples(st.integers(0, len(file) - 1), st.integers(0, 255)), max_size=12)
    )
    for place, byte in changes:
        file[place] = byte
    cut = data.draw(st.integers(0, len(file)))
    with suppress(EnvError):
        assert decode_image(Image(bytes(file[:cut]))).mode == "RGB"


def test_a_program_is_told_what_is_wrong_with_its_picture() -> None:
    good = base64.b64encode(file_of("PNG")).decode()
    assert from_base64(good, "image/png").media_type == "image/png"
    for data in ("é", "a", base64.b64encode(png(65535, 65535)).decode(), "AQI="):
        with pytest.raises(BadRequest):
            from_base64(data, "image/png")


def test_picture_files_are_opened_in_one_place() -> None:
    found: list[str] = []
    for folder in ("agentrl", "envs", "tools", "sandbox"):
        for file in (ROOT / folder).rglob("*.py"):
            calls = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
            opens = any(isinstance(one, ast.Call) and is_opening(one.func) for one in calls)
            found += [f"{file.relative_to(ROOT)}"] * opens
    assert found == ["agentrl/runtime/image_decoding.py"]


def is_opening(called: ast.expr) -> bool:
    """Say whether `open` is called on what names Pillow's module of images."""
    if not isinstance(called, ast.Attribute) or called.attr != "open":
        return False
    owner = called.value
    name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
    return name in ("Image", "Pictures", "PILImage", "EpsImagePlugin", "ImageFile")
