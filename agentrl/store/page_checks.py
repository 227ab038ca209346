"""Checksums of an SQLite file's pages, beside it: they tell what the disk has changed.

SQLite checks the frames of its write-ahead log itself, and takes a changed page of the database as
it is. The rule here: every page of the file is as its checksum says, or a frame of the log has it.
The writer holds to it by one order: copy frames into the file, write the checksums, empty the log.
"""

import os
import struct
import zlib
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PAGE_BYTES = 4096
_CHUNK_BYTES = 256 * PAGE_BYTES
_MAGIC = b"agentrl pages 1\n"
_CHECK = struct.Struct("<I")
_LOG_HEAD_BYTES = 32
_FRAME_HEAD_BYTES = 24
_PAGE_NUMBER = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class PageChecks:
    """The CRC-32 of every page of a file, in order; pages are counted from 0."""

    checks: "array[int]"

    @classmethod
    def from_file(cls, file: Path) -> "PageChecks":
        """Return the checksums of a file as it is."""
        checks = array("I")
        with file.open("rb") as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                view = memoryview(chunk)
                starts = range(0, len(chunk), PAGE_BYTES)
                checks.extend(zlib.crc32(view[start : start + PAGE_BYTES]) for start in starts)
        return cls(checks)

    @classmethod
    def read(cls, file: Path) -> "PageChecks | None":
        """Return the checksums that lie beside a file; None where they are missing or damaged."""
        try:
            data = check_file(file).read_bytes()
        except FileNotFoundError:
            return None
        body = data[len(_MAGIC) : -_CHECK.size]
        is_whole = data.startswith(_MAGIC) and data.endswith(_CHECK.pack(zlib.crc32(body)))
        if not is_whole or len(body) % _CHECK.size:
            return None
        return cls(array("I", struct.unpack(f"<{len(body) // _CHECK.size}I", body)))

    def write(self, file: Path) -> None:
        """Put the checksums beside a file, whole or not at all."""
        body = struct.pack(f"<{len(self.checks)}I", *self.checks)
        partial = check_file(file).with_suffix(".partial")
        partial.write_bytes(_MAGIC + body + _CHECK.pack(zlib.crc32(body)))
        partial.replace(check_file(file))

    def update(self, file: Path, pages: Iterable[int]) -> "PageChecks":
        """Return the checksums after some pages were written."""
        checks = self.checks[:]
        with file.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            count = -(-size // PAGE_BYTES)
            del checks[count:]
            checks.extend([0] * (count - len(checks)))
            for page in pages:
                if page < count:
                    stream.seek(page * PAGE_BYTES)
                    checks[page] = zlib.crc32(stream.read(PAGE_BYTES))
        return PageChecks(checks)

    def differences(self, other: "PageChecks") -> set[int]:
        """Return the pages in which two files differ."""
        shared = min(len(self.checks), len(other.checks))
        longest = max(len(self.checks), len(other.checks))
        changed = {page for page in range(shared) if self.checks[page] != other.checks[page]}
        return changed | {*range(shared, longest)}


def check_file(file: Path) -> Path:
    """Return the path of a file's checksums."""
    return file.with_name(f"{file.name}.check")


def find_logged_pages(file: Path, *, frames: int | None = None) -> set[int]:
    """Return the pages that the first so many frames of a file's write-ahead log have; of all."""
    pages: set[int] = set()
    try:
        descriptor = os.open(file.with_name(f"{file.name}-wal"), os.O_RDONLY)
    except FileNotFoundError:
        return pages
    try:
        frame_bytes = _FRAME_HEAD_BYTES + PAGE_BYTES
        frame_count = (os.fstat(descriptor).st_size - _LOG_HEAD_BYTES) // frame_bytes
        for frame in range(frame_count if frames is None else min(frame_count, frames)):
            head = os.pread(descriptor, _PAGE_NUMBER.size, _LOG_HEAD_BYTES + frame * frame_bytes)
            if len(head) < _PAGE_NUMBER.size:
                break  # emptied meanwhile
            pages.add(_PAGE_NUMBER.unpack(head)[0] - 1)
        pages.discard(-1)  # of a frame that is not whole
    finally:
        os.close(descriptor)
    return pages


def find_foreign_pages(file: Path) -> set[int] | None:
    """Return the pages of a file that are neither as their checksum says nor in its log.

    A writer may be at work: what it changes between two looks is looked at again. None where there
    are no checksums that can be used.
    """
    while True:
        checks = PageChecks.read(file)
        if checks is None:
            return None
        logged = find_logged_pages(file)
        changed = checks.differences(PageChecks.from_file(file)) - logged
        changed -= find_logged_pages(file)
        after = PageChecks.read(file)
        if after is not None and after.checks == checks.checks:
            return changed
