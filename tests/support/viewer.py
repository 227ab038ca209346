"""A VNC viewer in a few lines, for tests: it speaks RFB 3.8 (RFC 6143), and sees raw pixels."""

import asyncio
import struct
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Self

import numpy as np
from numpy import ndarray

from agentrl_envs.gui.vnc.rfb import compute_answer

RETURN, SHIFT, CTRL = 0xFF0D, 0xFFE1, 0xFFE3


class Viewer:
    """What came of `connect`. `frame` is what it has been sent, as blue, green, red and nothing."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.frame = np.zeros((0, 0, 4), dtype=np.uint8)
        self.name = ""

    async def shake_hands(self, password: str, *, version: str = "003.008") -> Self:
        """Say version and password; `PermissionError` with the server's reason."""
        assert await self.reader.readexactly(12) == b"RFB 003.008\n"
        self.writer.write(f"RFB {version}\n".encode())
        if version == "003.003":
            assert await self._number() == 2
        else:
            assert await self.reader.readexactly(2) == b"\x01\x02"
            self.writer.write(b"\x02")
        self.writer.write(compute_answer(await self.reader.readexactly(16), password))
        if await self._number() != 0:
            why = (
                await self.reader.readexactly(await self._number()) if version > "003.007" else b""
            )
            raise PermissionError(why.decode())
        self.writer.write(b"\x01")
        wide, high = struct.unpack("!HH", await self.reader.readexactly(4))
        await self.reader.readexactly(16)
        self.name = (await self.reader.readexactly(await self._number())).decode()
        self.frame = np.zeros((high, wide, 4), dtype=np.uint8)
        return self

    async def see(self, *, changes: bool = False) -> tuple[int, int, int, int]:
        """Ask for the picture and take it in; return left, top, width and height of what came."""
        self.writer.write(struct.pack("!BBHHHH", 3, changes, 0, 0, 0xFFFF, 0xFFFF))
        kind, count = struct.unpack("!BxH", await self.reader.readexactly(4))
        assert (kind, count) == (0, 1)
        left, top, wide, high, how = struct.unpack("!HHHHi", await self.reader.readexactly(12))
        assert how == 0
        data = await self.reader.readexactly(4 * wide * high)
        part: ndarray = np.frombuffer(data, dtype=np.uint8).reshape(high, wide, 4)
        self.frame[top : top + high, left : left + wide] = part
        return left, top, wide, high

    async def see_until(self, is_seen: Callable[[ndarray], bool]) -> None:
        """Look until the picture is as wanted."""
        await self.see()
        while not is_seen(self.frame):
            await self.see(changes=True)

    def point(self, x: int, y: int, buttons: int = 0) -> None:
        """Move the mouse, with these buttons down."""
        self.writer.write(struct.pack("!BBHH", 5, buttons, x, y))

    def click(self, x: int, y: int, bit: int = 0) -> None:
        """Press and release a button."""
        self.point(x, y)
        self.point(x, y, 1 << bit)
        self.point(x, y)

    def key(self, *symbols: int) -> None:
        """Press keys together."""
        for down, order in ((1, symbols), (0, symbols[::-1])):
            for symbol in order:
                self.writer.write(struct.pack("!BBxxI", 4, down, symbol))

    def type(self, text: str) -> None:
        """Strike a key for every character."""
        for character in text:
            number = ord(character)
            self.key(number if number < 0x100 else 0x01000000 + number)

    async def _number(self) -> int:
        return int.from_bytes(await self.reader.readexactly(4), "big")


@asynccontextmanager
async def connect(
    address: str, password: str, *, version: str = "003.008"
) -> AsyncGenerator[Viewer]:
    """Give a viewer that has come in."""
    if address.startswith("unix:"):
        reader, writer = await asyncio.open_unix_connection(address.removeprefix("unix:"))
    else:
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield await Viewer(reader, writer).shake_hands(password, version=version)
    finally:
        writer.close()
