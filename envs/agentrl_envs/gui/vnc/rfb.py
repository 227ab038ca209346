"""The protocol of VNC, RFB 3.3 to 3.8 (RFC 6143): what a server says, and reads.

Every message of a viewer is read whole; pictures go out uncompressed, in the pixels that the viewer
asks for.
"""

import asyncio
import struct
import time
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.decrepit.ciphers.algorithms import TripleDES
from cryptography.hazmat.primitives.ciphers import Cipher, modes
from numpy.typing import NDArray

from agentrl_envs.gui.vnc.gestures import Event, KeyEvent, PointerEvent

VERSION = b"RFB 003.008\n"
VNC_AUTHENTICATION = 2
CHALLENGE_BYTES = 16
PASSWORD_BYTES = 8
"""More of a password the protocol does not look at."""
_PIXELS = struct.Struct("!BBBBHHHBBB3x")
_CUT_BYTES = 2**20
_RAW = 0

Frame = NDArray[np.uint8]
"""A picture, its pixels as blue, green, red and nothing."""


class BadViewer(Exception):
    """A viewer that does not speak the protocol."""


@dataclass(frozen=True, slots=True)
class PixelFormat:
    """Pixel format that a viewer wants."""

    bits: int = 32
    big_endian: bool = False
    maxima: tuple[int, int, int] = (255, 255, 255)
    """Of red, green and blue."""
    shifts: tuple[int, int, int] = (16, 8, 0)

    @classmethod
    def parse(cls, data: bytes) -> "PixelFormat":
        """Return the format that a viewer asks for; `BadViewer` for one without true colours."""
        bits, _, big, true, red, green, blue, *shifts = _PIXELS.unpack(data)
        if bits not in (8, 16, 32) or not true or max(shifts) >= bits:
            raise BadViewer(f"pixels of {bits} bits, true colours: {bool(true)}")
        return cls(bits, bool(big), (red, green, blue), (shifts[0], shifts[1], shifts[2]))

    def pack(self) -> bytes:
        """Return it as it is said."""
        return _PIXELS.pack(self.bits, 24, self.big_endian, True, *self.maxima, *self.shifts)

    def encode(self, frame: Frame) -> bytes:
        """Return a picture in these pixels."""
        if self == PixelFormat():
            return frame.tobytes()
        whole = np.zeros(frame.shape[:2], dtype=np.uint32)
        for channel, most, shift in zip((2, 1, 0), self.maxima, self.shifts, strict=True):
            part = (frame[..., channel].astype(np.uint32) * most + 127) // 255
            whole |= part << np.uint32(shift)
        return whole.astype(f"{'>' if self.big_endian else '<'}u{self.bits // 8}").tobytes()


@dataclass(frozen=True, slots=True)
class UpdateRequest:
    """A viewer wants the picture, or with `changes` what is another one since the last."""

    changes: bool


Message = UpdateRequest | Event | PixelFormat | None
"""A message of a viewer; None for one that needs no answer."""


async def read_message(reader: asyncio.StreamReader) -> Message:
    """Return the next message; `IncompleteReadError` at the end, `BadViewer` for what is none."""
    kind = (await reader.readexactly(1))[0]
    match kind:
        case 0:
            return PixelFormat.parse((await reader.readexactly(19))[3:])
        case 2:
            (count,) = struct.unpack("!xH", await reader.readexactly(3))
            await reader.readexactly(4 * count)
            return None
        case 3:
            return UpdateRequest(changes=bool((await reader.readexactly(9))[0]))
        case 4:
            down, symbol = struct.unpack("!B2xI", await reader.readexactly(7))
            return KeyEvent(time.monotonic(), symbol, bool(down))
        case 5:
            buttons, x, y = struct.unpack("!BHH", await reader.readexactly(5))
            return PointerEvent(time.monotonic(), (x, y), buttons)
        case 6:
            (size,) = struct.unpack("!3xI", await reader.readexactly(7))
            if size > _CUT_BYTES:
                raise BadViewer(f"a clipboard of {size} bytes")
            await reader.readexactly(size)
            return None
        case _:
            raise BadViewer(f"a message of type {kind}")


def encode_server_init(width: int, height: int, name: str) -> bytes:
    """Return a server's description of its screen."""
    name_bytes = name.encode()
    size = struct.pack("!HH", width, height)
    return size + PixelFormat().pack() + struct.pack("!I", len(name_bytes)) + name_bytes


def encode_update(frame: Frame, left: int, top: int, pixels: PixelFormat) -> bytes:
    """Return a part of the picture as it is sent."""
    high, wide = frame.shape[:2]
    return struct.pack("!BxHHHHHi", 0, 1, left, top, wide, high, _RAW) + pixels.encode(frame)


def compute_answer(challenge: bytes, password: str) -> bytes:
    """Return the answer of a viewer that knows the password."""
    key = password.encode("latin-1")[:PASSWORD_BYTES].ljust(PASSWORD_BYTES, b"\0")
    mirrored = bytes(int(f"{byte:08b}"[::-1], 2) for byte in key)
    # One DES, as three with the same key; the mode is what the protocol asks for.
    cipher = Cipher(TripleDES(mirrored * 3), modes.ECB())
    encryptor = cipher.encryptor()
    return encryptor.update(challenge) + encryptor.finalize()


def find_change(before: Frame, now: Frame) -> tuple[int, int, int, int] | None:
    """Return left, top, right and bottom of what is another picture; None where nothing is."""
    differs = (before != now).any(axis=2)
    rows, columns = np.flatnonzero(differs.any(axis=1)), np.flatnonzero(differs.any(axis=0))
    if not len(rows):
        return None
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1
