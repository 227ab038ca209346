"""One end of a channel inside the event loop of the keeper: never blocks, in either direction."""

import os
import selectors
import socket
from collections import deque
from collections.abc import Callable

from agentrl_sandbox.inside.frames import ChannelFrame, ChannelFrameReader, FrameError

_CHUNK_BYTES = 2**16
"""Less than what the C library maps and unmaps for each read."""


class ChannelLink:
    """Frames over a non-blocking socket; `on_end` is called once, with the reason."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        channel: socket.socket,
        *,
        on_frame: Callable[[ChannelFrame], None],
        on_end: Callable[[str], None],
        reader: ChannelFrameReader | None = None,
    ) -> None:
        self._selector = selector
        self.channel = channel
        self._on_frame = on_frame
        self._on_end = on_end
        self._reader = reader or ChannelFrameReader()
        self._out: deque[tuple[memoryview, int | None]] = deque()
        self._open = True
        channel.setblocking(False)
        selector.register(channel, selectors.EVENT_READ, self.ready)

    def send(self, data: bytes, fd: int | None = None) -> None:
        """Send now what the socket takes, and the rest when it takes more; a descriptor with it."""
        if not self._open:
            return
        busy = bool(self._out)
        self._out.append((memoryview(data), None if fd is None else os.dup(fd)))
        if busy:
            return
        try:
            self._flush()
        except BlockingIOError:
            pass
        except OSError as error:
            self._end(str(error))
            return
        if self._out:
            both = selectors.EVENT_READ | selectors.EVENT_WRITE
            self._selector.modify(self.channel, both, self.ready)

    def ready(self, events: int) -> None:
        """Do what the selector says can be done."""
        if not self._open:
            return
        try:
            if events & selectors.EVENT_WRITE:
                self._flush()
                self._selector.modify(self.channel, selectors.EVENT_READ, self.ready)
            if events & selectors.EVENT_READ:
                self._receive()
        except BlockingIOError:
            return
        except (OSError, FrameError) as error:
            self._end(f"{type(error).__name__}: {error}")

    def close(self) -> None:
        """Stop listening and close the socket. Idempotent."""
        if self._open:
            self._open = False
            self._selector.unregister(self.channel)
            self.channel.close()
            for _, fd in self._out:
                if fd is not None:
                    os.close(fd)
            self._out.clear()

    def _flush(self) -> None:
        while self._out:
            data, fd = self._out[0]
            sent = socket.send_fds(self.channel, [data], [] if fd is None else [fd])
            if fd is not None:
                os.close(fd)
            self._out.popleft()
            if sent < len(data):
                self._out.appendleft((data[sent:], None))

    def _receive(self) -> None:
        data = self.channel.recv(_CHUNK_BYTES)
        if not data:
            self._end("closed by the other side")
            return
        for frame in self._reader.feed(data):
            if self._open:
                self._on_frame(frame)

    def _end(self, reason: str) -> None:
        if self._open:
            self.close()
            self._on_end(reason)
