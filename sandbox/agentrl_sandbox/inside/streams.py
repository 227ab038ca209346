"""The standard streams of interpreters, made once by the supervisor and inherited by forking.

A stream is bound to the number of a descriptor, so it serves whatever is put there later. Making
three of them in every interpreter would copy more pages than anything else at its start.
"""

import io
import os
import sys
from collections.abc import Sequence
from typing import Any

from agentrl_sandbox.inside.output import OutputCapture

_KINDS = ("stdin", "stdout", "stderr")


class _File(io.FileIO):
    """A descriptor to write to, whose capture hears of everything that is written."""

    def write(self, b: Any, /) -> int:
        if (capture := _captures.get(self.fileno())) is None:
            return super().write(b)
        count = super().write(b[: capture.piece_bytes])  # the rest is offered again
        capture.wrote(count)
        return count


_prepared: list[io.TextIOWrapper] = []
"""Text streams over the descriptors 0, 1 and 2, once they are made."""
_captures: dict[int, OutputCapture] = {}


def bind_captures(captures: Sequence[OutputCapture]) -> None:
    """Keep what is written to standard output and error within bounds."""
    _captures.clear()
    _captures.update(enumerate(captures, start=1))


def prepare() -> None:
    """Install streams here, and so in all interpreters that are forked from here."""
    saved = [os.dup(fd) for fd in range(len(_KINDS))]
    out, into = os.pipe()  # a stream asks its descriptor whether it can seek: a pipe cannot
    try:
        os.dup2(into, 1)
        os.dup2(into, 2)
        install()
    finally:
        for place, fd in enumerate(saved):
            os.dup2(fd, place, inheritable=True)
        for fd in (*saved, out, into):
            os.close(fd)


def install() -> None:
    """Put back the standard streams, whatever a cell has put there; new ones if it closed one."""
    if not _prepared or any(stream.closed for stream in _prepared):
        reader = io.BufferedReader(io.FileIO(0, closefd=False))
        _prepared[:] = [io.TextIOWrapper(reader, "utf-8"), _make_writer(1), _make_writer(2)]
    for kind, stream in zip(_KINDS, _prepared, strict=True):
        for name in (kind, f"__{kind}__"):
            if getattr(sys, name, None) is not stream:
                setattr(sys, name, stream)


def _make_writer(fd: int) -> io.TextIOWrapper:
    file = io.BufferedWriter(_File(fd, "w", closefd=False))
    return io.TextIOWrapper(file, "utf-8", "backslashreplace", line_buffering=True)
