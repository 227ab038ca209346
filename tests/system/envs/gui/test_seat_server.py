"""The VNC server of a picture: the protocol's bytes, viewers that come, go and misbehave."""

import asyncio
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from unittest.mock import ANY

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_envs.gui.vnc.board import BUTTONS, HEIGHT, LINE_PIXELS, StatusBoard, button_at
from agentrl_envs.gui.vnc.gestures import Event, KeyEvent, PointerEvent
from agentrl_envs.gui.vnc.rfb import (
    BadViewer,
    Message,
    PixelFormat,
    UpdateRequest,
    compute_answer,
    encode_update,
    find_change,
    read_message,
)
from agentrl_envs.gui.vnc.server import VncServer
from tests.support.viewer import connect

LIMIT_S = 120.0
PICTURE = np.arange(6 * 8 * 4, dtype=np.uint8).reshape(6, 8, 4)


@asynccontextmanager
async def serving(at: str = "127.0.0.1:0") -> AsyncGenerator[tuple[VncServer, list[Event]]]:
    events: list[Event] = []
    server = VncServer("a desk", PICTURE.copy(), events.append)
    async with asyncio.timeout(LIMIT_S):
        await server.open(at)
        try:
            yield server, events
        finally:
            await server.close()


async def read(data: bytes) -> Message:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    return await read_message(reader)


def test_the_answer_is_the_one_every_viewer_gives() -> None:
    """Checked against vncdotool's; more than eight characters are not looked at."""
    expected = bytes.fromhex("adcd997f8e16fee575e973f93c2b62b4")
    assert compute_answer(bytes(range(16)), "secret12") == expected
    assert compute_answer(bytes(range(16)), "secret12 and more") == expected
    assert compute_answer(bytes(range(16)), "secret1") != expected


async def test_messages_are_read_whole() -> None:
    assert await read(b"\x03\x01" + bytes(8)) == UpdateRequest(changes=True)
    assert await read(b"\x03\x00" + bytes(8)) == UpdateRequest(changes=False)
    assert await read(struct.pack("!BBxxI", 4, 1, 0xFF0D)) == KeyEvent(ANY, 0xFF0D, True)
    assert await read(struct.pack("!BBHH", 5, 5, 300, 2)) == PointerEvent(ANY, (300, 2), 5)
    assert await read(struct.pack("!BxHii", 2, 2, 0, -239)) is None
    assert await read(struct.pack("!B3xI", 6, 3) + b"abc") is None
    assert await read(b"\x00\0\0\0" + PixelFormat().pack()) == PixelFormat()
    for bad, why in (
        (b"\x07", "type 7"),
        (struct.pack("!B3xI", 6, 2**31), "a clipboard of"),
        (b"\x00\0\0\0" + struct.pack("!BBBBHHHBBB3x", 8, 8, 0, 0, 0, 0, 0, 0, 0, 0), "8 bits"),
        (b"\x00\0\0\0" + struct.pack("!BBBBHHHBBB3x", 24, 24, 0, 1, 1, 1, 1, 0, 0, 0), "24 bits"),
        (b"\x00\0\0\0" + struct.pack("!BBBBHHHBBB3x", 16, 16, 0, 1, 1, 1, 1, 0, 0, 16), "16 bits"),
    ):
        with pytest.raises(BadViewer, match=why):
            await read(bad)
    for short in (b"", b"\x05\0", struct.pack("!B3xI", 6, 3) + b"ab"):
        with pytest.raises(asyncio.IncompleteReadError):
            await read(short)


def test_pixels_are_sent_as_they_are_asked_for() -> None:
    frame = np.array([[[0, 128, 255, 7], [255, 0, 0, 7]]], dtype=np.uint8)  # orange, blue
    assert PixelFormat().encode(frame) == frame.tobytes()
    five = PixelFormat(16, True, (31, 63, 31), (11, 5, 0))
    assert five.encode(frame).hex() == "fc00001f"
    assert PixelFormat(16, False, (31, 63, 31), (11, 5, 0)).encode(frame).hex() == "00fc1f00"
    assert PixelFormat(8, False, (7, 7, 3), (5, 2, 0)).encode(frame).hex() == "f003"
    swapped = PixelFormat(32, False, (255, 255, 255), (0, 8, 16))
    assert swapped.encode(frame).hex() == "ff8000000000ff00"
    assert (
        encode_update(frame, 3, 4, PixelFormat())[:16].hex()
        == "0000000100030004000200010000" + "0000"
    )
    assert PixelFormat.parse(five.pack()) == five


frames = st.lists(st.integers(0, 1), min_size=12, max_size=12).map(
    lambda bits: np.array(bits, dtype=np.uint8).reshape(3, 4, 1).repeat(4, axis=2)
)


@given(frames, frames)
def test_what_changed_is_the_smallest_part_that_has_it_all(
    before: np.ndarray, now: np.ndarray
) -> None:
    part = find_change(before, now)
    if part is None:
        assert (before == now).all()
        return
    left, top, right, bottom = part
    mended = before.copy()
    mended[top:bottom, left:right] = now[top:bottom, left:right]
    assert (mended == now).all()
    differs = (before != now).any(axis=2)
    assert differs[top].any()
    assert differs[bottom - 1].any()
    assert differs[:, left].any()
    assert differs[:, right - 1].any()


@pytest.mark.parametrize("version", ["003.003", "003.007", "003.008", "003.889"])
async def test_viewers_of_every_version_see_and_are_heard(version: str) -> None:
    async with (
        serving() as (server, events),
        connect(server.address, server.password, version=version) as viewer,
    ):
        assert viewer.name == "a desk"
        assert await viewer.see() == (0, 0, 8, 6)
        assert (viewer.frame == PICTURE).all()
        viewer.click(2, 3)
        viewer.key(ord("q"))
        other = PICTURE.copy()
        other[2:4, 5:7] = 0
        looking = asyncio.ensure_future(viewer.see(changes=True))
        await server.show(PICTURE.copy())
        await server.show(other)
        assert await looking == (5, 2, 2, 2)
        assert (viewer.frame == other).all()
        assert [type(event) for event in events] == [PointerEvent] * 3 + [KeyEvent] * 2
        assert [e.buttons for e in events if isinstance(e, PointerEvent)] == [0, 1, 0]


async def test_who_does_not_know_the_password_is_told_and_the_next_one_may_come() -> None:
    async with serving() as (server, events):
        for version, why in (("003.008", "password"), ("003.007", "^$"), ("003.003", "^$")):
            with pytest.raises(PermissionError, match=why):
                async with connect(server.address, "wrong", version=version):
                    pass
        host, _, port = server.address.rpartition(":")
        for said in (
            b"GET / HTTP/1.0\r\n\r\n",
            b"RFB 003.008\n\x01",
            b"RFB 003.0",
            b"RFB 003.xyz\n",
        ):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(said)
            writer.write_eof()
            await reader.read()
            writer.close()
        assert server.viewers == 0
        async with connect(server.address, server.password) as viewer:
            await viewer.see()
            viewer.writer.write(b"\xff")
            assert await viewer.reader.read() == b"", "it is hung up on"
        assert not events
        async with connect(server.address, server.password) as viewer:
            await viewer.see()
        assert server.viewers == 2


async def test_a_second_viewer_takes_the_place_of_the_first() -> None:
    async with serving() as (server, events), connect(server.address, server.password) as first:
        await first.see()
        async with connect(server.address, server.password) as second:
            await second.see()
            assert await first.reader.read() == b""
            second.point(1, 1)
            await second.see()
        assert len(events) == 1


async def test_a_socket_is_its_users_alone_and_goes_with_the_server(tmp_path: Path) -> None:
    place = tmp_path / "desk"
    async with serving(f"unix:{place}") as (server, _):
        assert place.stat().st_mode & 0o777 == 0o600
        async with connect(server.address, server.password) as viewer:
            await viewer.see()
            await server.close()
            assert await viewer.reader.read() == b""
    assert not place.exists()


def test_passwords_are_made_anew() -> None:
    made = {VncServer("x", PICTURE, print).password for _ in range(20)}
    assert len(made) == 20
    assert {len(one) for one in made} == {8}


def test_the_board_has_the_task_and_its_buttons() -> None:
    board = StatusBoard(goal="Press it. " * 60, state="wait")
    drawn = board.draw(500)
    assert drawn.shape == (HEIGHT, 500, 4)
    assert (drawn != StatusBoard(goal=board.goal).draw(500)).any(), "the state is there"
    empty = StatusBoard().draw(500)
    for line in range(3):
        rows = slice(line * LINE_PIXELS, (line + 1) * LINE_PIXELS)
        assert (drawn[rows] != empty[rows]).any(), "a long task has three lines"
    y = HEIGHT - LINE_PIXELS // 2
    assert [button_at(10 + 124 * i, y) for i in range(len(BUTTONS))] == [*BUTTONS]
    assert button_at(10, HEIGHT - LINE_PIXELS - 1) is None
    assert button_at(10 + 124 * len(BUTTONS), y) is None
    assert button_at(0, y) is None
