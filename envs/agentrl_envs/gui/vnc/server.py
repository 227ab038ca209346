"""A VNC server of one picture, for one viewer at a time, on this machine alone, with a password."""

import asyncio
import hmac
import os
import secrets
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

from agentrl.errors import ConfigError
from agentrl_envs.gui.vnc.gestures import Event, KeyEvent, PointerEvent
from agentrl_envs.gui.vnc.rfb import (
    CHALLENGE_BYTES,
    VERSION,
    VNC_AUTHENTICATION,
    BadViewer,
    Frame,
    PixelFormat,
    UpdateRequest,
    compute_answer,
    encode_server_init,
    encode_update,
    find_change,
    read_message,
)

UNIX = "unix:"
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_GREETING_S = 30.0
"""For a viewer to say its version and the password."""
_SEND_S = 30.0
"""For a viewer to take a picture; one that does not is hung up on."""
_WRONG_S = 1.0
"""A wrong password costs its sender this long."""


class VncServer:
    """Shows `frame`, and tells of what the viewer's hands do. Opened by `open`."""

    def __init__(self, name: str, frame: Frame, on_event: Callable[[Event], None]) -> None:
        self.password = secrets.token_hex(4)
        self.address = ""
        """Where it listens, as viewers are told."""
        self.viewers = 0
        """How many have come in."""
        self._name = name
        self._frame = frame
        self._on_event = on_event
        self._is_new = asyncio.Condition()
        self._listening: asyncio.Server | None = None
        self._current: asyncio.Task[None] | None = None
        self._socket: Path | None = None

    async def open(self, at: str) -> None:
        """Listen at `HOST:PORT` of this machine, or at `unix:PATH`, which only its user may open.

        Raises `ConfigError` for an address of another machine, or one that is taken.
        """
        try:
            if at.startswith(UNIX):
                self._socket = Path(at.removeprefix(UNIX))
                before = os.umask(0o177)
                try:
                    self._listening = await asyncio.start_unix_server(self._serve, self._socket)
                finally:
                    os.umask(before)
                self.address = at
                return
            host, _, port = at.rpartition(":")
            if host not in _LOOPBACK or not port.isdecimal():
                raise ConfigError(
                    f"a desktop cannot be shown at {at!r}; give 127.0.0.1:PORT, which an ssh "
                    f"tunnel can forward, or {UNIX}PATH"
                )
            self._listening = await asyncio.start_server(self._serve, host, int(port))
        except OSError as error:
            raise ConfigError(f"a desktop cannot be shown at {at}: {error}") from error
        where = self._listening.sockets[0].getsockname()
        self.address = f"{where[0]}:{where[1]}"

    async def show(self, frame: Frame) -> None:
        """Show another picture of the same size."""
        async with self._is_new:
            self._frame = frame
            self._is_new.notify_all()

    async def close(self) -> None:
        """Hang up, and stop listening. Idempotent."""
        if self._listening is not None:
            self._listening.close()
        if self._current is not None:
            self._current.cancel()
            with suppress(asyncio.CancelledError):
                await self._current
        if self._socket is not None:
            self._socket.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a viewer; the one before is hung up on once this one has said the password."""
        try:
            async with asyncio.timeout(_GREETING_S):
                await self._greet(reader, writer)
            before, self._current = self._current, asyncio.current_task()
            if before is not None:
                before.cancel()
            self.viewers += 1
            async with asyncio.TaskGroup() as group:
                wishes: asyncio.Queue[UpdateRequest | PixelFormat] = asyncio.Queue()
                showing = group.create_task(self._send_frames(writer, wishes))
                try:
                    await self._receive(reader, wishes)
                finally:
                    showing.cancel()
        except* (OSError, EOFError, TimeoutError, BadViewer):
            pass  # it went, or is none: the next one may come
        finally:
            writer.close()

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(VERSION)
        version = await reader.readexactly(len(VERSION))
        if not (version.startswith(b"RFB 003.") and version[8:11].isdigit()):
            raise BadViewer(f"a viewer that says {version!r}")
        minor = int(version[8:11])
        if minor < 7:
            writer.write(struct.pack("!I", VNC_AUTHENTICATION))
        else:
            writer.write(bytes([1, VNC_AUTHENTICATION]))
            if (await reader.readexactly(1))[0] != VNC_AUTHENTICATION:
                raise BadViewer("a viewer without a password")
        challenge = secrets.token_bytes(CHALLENGE_BYTES)
        writer.write(challenge)
        answer = await reader.readexactly(CHALLENGE_BYTES)
        if not hmac.compare_digest(answer, compute_answer(challenge, self.password)):
            await asyncio.sleep(_WRONG_S)
            why = b"the password is another one"
            reason = struct.pack("!I", len(why)) + why if minor >= 8 else b""
            writer.write(struct.pack("!I", 1) + reason)
            await writer.drain()
            raise BadViewer("a wrong password")
        writer.write(struct.pack("!I", 0))
        await reader.readexactly(1)
        high, wide = self._frame.shape[:2]
        writer.write(encode_server_init(wide, high, self._name))

    async def _receive(
        self, reader: asyncio.StreamReader, wishes: asyncio.Queue[UpdateRequest | PixelFormat]
    ) -> None:
        while True:
            match message := await read_message(reader):
                case UpdateRequest() | PixelFormat():
                    wishes.put_nowait(message)
                case KeyEvent() | PointerEvent():
                    self._on_event(message)
                case None:
                    pass

    async def _send_frames(
        self, writer: asyncio.StreamWriter, wishes: asyncio.Queue[UpdateRequest | PixelFormat]
    ) -> None:
        pixels, last = PixelFormat(), np.zeros_like(self._frame)
        while True:
            wish = await wishes.get()
            if isinstance(wish, PixelFormat):
                pixels = wish
                continue
            high, wide = self._frame.shape[:2]
            part = (0, 0, wide, high)
            if wish.changes:
                async with self._is_new:
                    while (rectangle := find_change(last, self._frame)) is None:
                        await self._is_new.wait()
                part = rectangle
            last = self._frame
            left_x, top, right, bottom = part
            writer.write(encode_update(last[top:bottom, left_x:right], left_x, top, pixels))
            async with asyncio.timeout(_SEND_S):
                await writer.drain()
