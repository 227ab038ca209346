"""Captured output, bounded: the head and the tail are kept, the middle is counted."""

import os

_CROP_BYTES = 2**20
"""Output is held in full up to here."""


def open_for_append(fd: int) -> int:
    """Open the file behind `fd` once more: what is written there is appended, whoever writes."""
    return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)


class OutputCapture:
    """Takes the output of one cell after the other out of a file that is appended to."""

    def __init__(self, fd: int, limit_bytes: int, *, file_bytes: int = 4 * _CROP_BYTES) -> None:
        self._fd = fd
        self._limit_bytes = limit_bytes
        self._half = max(1, limit_bytes // 2)
        self.piece_bytes = min(_CROP_BYTES, max(1, file_bytes // 4))
        """The most to be written at once, so that the limit on the file is never met."""
        self._written = 0
        self._omitted = 0

    def wrote(self, count: int) -> None:
        """Hear that `count` bytes were written, and crop the file when it has grown long."""
        self._written += count
        if self._written > self.piece_bytes:
            self._written = 0
            self._crop()

    def take(self, *, dead: bool = False) -> tuple[str, bool]:
        """Return the text since the last call, and whether some of it was left out.

        Of a `dead` writer the file tells that it was cropped, not how often.
        """
        if not os.lseek(self._fd, 0, os.SEEK_END):
            return "", False
        output = self._read()
        os.ftruncate(self._fd, 0)
        self._written = self._omitted = 0
        return output.text(exact=not dead), output.truncated

    def _crop(self) -> None:
        """Take out the middle. A kill may come between any two calls: the file is always true.

        What stays is longer than the limit by a byte, and so is known to have been longer.
        """
        output = self._read()
        if not output.truncated:
            return
        size_bytes = max(self._limit_bytes, 2 * self._half) + 1
        os.pwrite(self._fd, output.tail, size_bytes - self._half)
        os.ftruncate(self._fd, size_bytes)
        self._omitted = output.omitted - (size_bytes - 2 * self._half)

    def _read(self) -> "ClippedOutput":
        size_bytes = os.lseek(self._fd, 0, os.SEEK_END)
        output = ClippedOutput(self._limit_bytes)
        if size_bytes <= self._limit_bytes:
            output.add(os.pread(self._fd, size_bytes, 0))
        else:
            output.add(os.pread(self._fd, self._half, 0))
            output.omitted += size_bytes - 2 * self._half
            output.add(os.pread(self._fd, self._half, size_bytes - self._half))
        output.omitted += self._omitted
        return output


class ClippedOutput:
    """Collects bytes and keeps at most `limit_bytes` of them."""

    def __init__(self, limit_bytes: int) -> None:
        self._half = max(1, limit_bytes // 2)
        self.head = bytearray()
        self.tail = bytearray()
        self.omitted = 0
        """Bytes that were left out, also before they came here."""

    @property
    def truncated(self) -> bool:
        """Whether something was left out."""
        return self.omitted > 0

    def add(self, data: bytes) -> None:
        """Take in more output."""
        room = self._half - len(self.head)
        if room > 0:
            self.head += data[:room]
            data = data[room:]
        self.tail += data
        if (extra := len(self.tail) - self._half) > 0:
            del self.tail[:extra]
            self.omitted += extra

    def text(self, *, exact: bool = True) -> str:
        """Return the kept text, with a line for the number of omitted bytes, exact or the least."""
        head, tail = (bytes(part).decode(errors="replace") for part in (self.head, self.tail))
        if not self.omitted:
            return bytes(self.head + self.tail).decode(errors="replace")
        count = f"{self.omitted} bytes" if exact else f"{self.omitted} bytes or more"
        return f"{head}\n... {count} left out ...\n{tail}"


def clip(text: str, limit_bytes: int) -> tuple[str, bool]:
    """Return `text` within `limit_bytes`, without lone surrogates, and whether it was cut."""
    if len(text) * 4 <= limit_bytes:
        return text.encode(errors="replace").decode(), False
    clipped = ClippedOutput(limit_bytes)
    clipped.add(text.encode(errors="replace"))
    return clipped.text(), clipped.truncated
