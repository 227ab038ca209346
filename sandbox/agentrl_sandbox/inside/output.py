"""Captured output, bounded: the head and the tail are kept, the middle is counted."""


class Clipped:
    """Collects bytes and keeps at most `limit_bytes` of them."""

    def __init__(self, limit_bytes: int) -> None:
        self._half = max(1, limit_bytes // 2)
        self._head = bytearray()
        self._tail = bytearray()
        self._omitted = 0

    @property
    def truncated(self) -> bool:
        """Whether something was left out."""
        return self._omitted > 0

    def add(self, data: bytes) -> None:
        """Take in more output."""
        room = self._half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if (extra := len(self._tail) - self._half) > 0:
            del self._tail[:extra]
            self._omitted += extra

    def text(self) -> str:
        """Return what was kept, with a line that says how much was not."""
        head, tail = (bytes(part).decode(errors="replace") for part in (self._head, self._tail))
        if not self._omitted:
            return bytes(self._head + self._tail).decode(errors="replace")
        return f"{head}\n... {self._omitted} bytes left out ...\n{tail}"


def clip(text: str, limit_bytes: int) -> tuple[str, bool]:
    """Return `text` within `limit_bytes`, and whether it was cut."""
    if len(text) * 4 <= limit_bytes:
        return text, False
    clipped = Clipped(limit_bytes)
    clipped.add(text.encode(errors="replace"))
    return clipped.text(), clipped.truncated
