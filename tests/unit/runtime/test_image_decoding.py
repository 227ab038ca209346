"""Picture files: limits are read from the head, and whatever a decoder raises is one error.

Mutants seen caught: no limit of pixels; one off; every format of Pillow; scans not counted, or
profiles not; a WebP's canvas not looked at; markers not counted, or bytes that fill; reads not
counted; a size that the decoder finds other than the head said; width and height swapped; the first
frame of a JPEG instead of the last.
"""

import ast
import base64
import io
import struct
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

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
    MAX_MARKERS,
    MAX_PIXELS,
    MAX_READS,
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


def chunk(kind: bytes, data: bytes = b"") -> bytes:
    check = struct.pack(">I", zlib.crc32(kind + data))
    return struct.pack(">I", len(data)) + kind + data + check


def png(width: int, height: int, pixels: bytes = b"") -> bytes:
    """Return a PNG that claims a size, with as much of its pixels as is given."""
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
    with pytest.raises(EnvError, match="have 65535 x 65535 pixels"):
        read_size(Image(png(65535, 65535)))


def test_a_file_has_a_limit_of_bytes_and_a_jpeg_one_of_scans() -> None:
    with pytest.raises(EnvError, match=f"exceed the limit of {MAX_BYTES}"):
        read_size(Image(file_of("PNG") + bytes(MAX_BYTES)))
    scans = b"\xff\xda\x00\x08\x01\x01\x00\x00\x3f\x00" * (MAX_SCANS + 1)
    with pytest.raises(EnvError, match=f"the limit is {MAX_SCANS}"):
        decode_image(Image(file_of("JPEG")[:-2] + scans + b"\xff\xd9", "image/jpeg"))


def packed(kind: str, size: tuple[int, int], **options: Any) -> bytes:
    out = io.BytesIO()
    Pictures.new("RGB", size, (200, 30, 40)).save(out, kind, **options)
    return out.getvalue()


@pytest.mark.parametrize("size", [(1, 1), (300, 7), (7, 300), (1025, 513)])
def test_the_head_says_what_the_decoder_finds(size: tuple[int, int]) -> None:
    files = [packed(kind, size) for kind in FORMATS]
    files.append(packed("JPEG", size, progressive=True, exif=Pictures.Exif()))
    files.append(packed("WEBP", size, lossless=True))
    files.append(packed("WEBP", size, exif=b"Exif\0\0MM\0*\0\0\0\x08\0\0"))  # has a canvas
    for file in files:
        assert read_size(Image(file)) == decode_image(Image(file)).size == size


@pytest.mark.parametrize(
    "filling",
    [b"\xff\xfe\0\2", b"\xff\xe3\0\3a", b"\xff", b"\xff\0", b"\xff\xd0", b"\xff\xfe\0\0"],
)
@watched
def test_a_jpeg_has_a_limit_of_markers(filling: bytes) -> None:
    file = file_of("JPEG")
    few = file[:2] + filling * (MAX_MARKERS - 100) + file[2:]
    assert read_size(Image(few)) == (8, 6)
    many = file[:2] + filling * (15 * 2**20 // len(filling)) + file[2:]
    with pytest.raises(EnvError, match=f"more than {MAX_MARKERS} markers .*return an image"):
        read_size(Image(many))


def png_with(chunks: bytes) -> bytes:
    file = png(8, 6, bytes(6 * 25))
    return file[:33] + chunks + file[33:]


def gif_with(blocks: bytes) -> bytes:
    file = file_of("GIF")
    after = 13 + (3 << (file[10] & 7) + 1 if file[10] & 0x80 else 0)
    return file[:after] + blocks + file[after:]


PROFILE = chunk(b"iCCP", b"k\0\0" + zlib.compress(bytes(1_000_000)))
NOTE = b"\xff\xe1" + struct.pack(">H", 1608) + b"Exif\0\0" + bytes(1600)
FULL: dict[str, tuple[bytes, str]] = {
    "chunks": (png_with(chunk(b"abCd") * 1_300_000), f"in more than {MAX_READS} pieces"),
    "comments": (gif_with(b"\x21\xfe\x01a\0" * 3_000_000), f"in more than {MAX_READS} pieces"),
    "profiles": (png_with(PROFILE * 9000), f"9000 colour profiles, but the limit is {MAX_SCANS}"),
    "notes": (
        file_of("JPEG")[:2] + NOTE * 9000 + file_of("JPEG")[2:],
        f"9000 Exif segments, but the limit is {MAX_SCANS}",
    ),
}


@pytest.mark.parametrize("name", FULL)
@watched
def test_a_full_head_costs_nothing_to_look_at_and_little_to_decode(name: str) -> None:
    file, words = FULL[name]
    assert len(file) < MAX_BYTES
    assert read_size(Image(file)) == (8, 6)
    with pytest.raises(EnvError, match=words):
        decode_image(Image(file))


def test_a_size_that_comes_twice_is_one_error() -> None:
    other = png(4000, 4000)[8:33]
    with pytest.raises(EnvError, match="4000 x 4000 pixels, but their head says 8 x 6; encode"):
        decode_image(Image(png_with(other)))
    frame = b"\xff\xc0\0\x0b\x08\x27\x10\x27\x10\1\1\x11\0"
    file = file_of("JPEG")
    scan = file.index(b"\xff\xda")
    with pytest.raises(EnvError, match="10000 x 10000 pixels, but the limit"):
        read_size(Image(file[:scan] + frame + file[scan:]))


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
