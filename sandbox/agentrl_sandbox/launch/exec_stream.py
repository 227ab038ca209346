"""A command in a container: what is asked of the engine, and the stream it answers with.

Each frame of the stream has a header of 8 bytes: 1 for stdout or 2 for stderr, three zeros, and the
length of what follows, big-endian.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

_HEADER_BYTES = 8
_STDERR = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecRequest:
    """A command; see `ProviderContainer.exec`."""

    argv: Sequence[str]
    cwd: str = ""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    user: str = ""
    max_bytes: int = 2**20
    """Length of stdout and of stderr each that is kept."""


@dataclass(frozen=True, slots=True)
class ExecEnd:
    """End of a command, or of our patience."""

    exit_code: int | None
    """None while it runs."""
    stdout: bytes
    stderr: bytes
    truncated: bool


class ExecReader:
    """Reads the frames of a command's output, however they are cut."""

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._header = bytearray()
        self._left = 0
        self._kind = 0
        self.stdout = bytearray()
        self.stderr = bytearray()
        self.truncated = False
        self.ended = False

    def feed(self, chunk: bytes) -> None:
        """Take what came next; nothing is the end."""
        self.ended = self.ended or not chunk
        rest = memoryview(chunk)
        while rest:
            if self._left == 0:
                count = _HEADER_BYTES - len(self._header)
                self._header += rest[:count]
                rest = rest[count:]
                if len(self._header) == _HEADER_BYTES:
                    self._kind = self._header[0]
                    self._left = int.from_bytes(self._header[4:], "big")
                    self._header.clear()
                continue
            body, rest = rest[: self._left], rest[self._left :]
            self._left -= len(body)
            stream = self.stderr if self._kind == _STDERR else self.stdout
            room = self._max_bytes - len(stream)
            self.truncated = self.truncated or len(body) > room
            stream += body[:room]
