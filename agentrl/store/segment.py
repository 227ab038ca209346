"""The log: append-only files of records, numbered through from the first file to the last."""

import os
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from agentrl.runtime.atomic_files import disk_advice
from agentrl.store.errors import DamagedStore, StoreError, build_segment_error, machine_errors
from agentrl.store.record import (
    HEADER_BYTES,
    LogRecord,
    UnreadableRecord,
    frame,
    payload_bytes,
    unframe,
)

_HEAD = struct.Struct("<16sIIQ")
_CHECK = struct.Struct("<I")
_MAGIC = b"agentrl segment\n"
FORMAT = 4
"""Format of segments and of the records in them."""

HEAD_BYTES = _HEAD.size + _CHECK.size


@dataclass(frozen=True, slots=True)
class RecordLocation:
    """Position of a record."""

    segment: int
    offset: int
    length: int

    @property
    def end(self) -> int:
        """Offset of the next record of the segment."""
        return self.offset + self.length


def segment_file(folder: Path, number: int) -> Path:
    """Return the path of a segment."""
    return folder / f"{number:08d}.segment"


def segments(folder: Path) -> Mapping[int, Path]:
    """Return the segments of a folder by number, rising."""
    files = {int(f.stem): f for f in folder.glob("*.segment") if f.stem.isdigit()}
    return dict(sorted(files.items()))


def first_sequence(file: Path) -> int:
    """Return the number of a segment's first record; raises `DamagedStore` for a wrong head."""
    with file.open("rb") as stream:
        head = stream.read(HEAD_BYTES)
    if len(head) < HEAD_BYTES:
        raise build_segment_error(
            file, 0, f"it has {len(head)} of the {HEAD_BYTES} bytes of its head"
        )
    magic, form, number, first = _HEAD.unpack_from(head)
    (check,) = _CHECK.unpack_from(head, _HEAD.size)
    if magic != _MAGIC or check != zlib.crc32(head[: _HEAD.size]) or number != int(file.stem):
        raise build_segment_error(file, 0, "its head does not match its checksum or its name")
    if form != FORMAT:
        raise StoreError(
            f"{file} has format {form}, but this version reads {FORMAT}; use the version of "
            "agentrl that wrote it"
        )
    return first


def scan(
    file: Path, *, offset: int, sequence: int
) -> Iterator[tuple[RecordLocation, LogRecord | UnreadableRecord]]:
    """Yield the records from `offset` on, the first of which is number `sequence`.

    What cannot be read is yielded too, as the last item; a file that ends with a whole record ends
    the iteration.
    """
    number = int(file.stem)
    with file.open("rb") as stream:
        stream.seek(offset)
        while header := stream.read(HEADER_BYTES):
            length = payload_bytes(header)
            rest = b"" if isinstance(length, UnreadableRecord) else stream.read(length)
            record = unframe(header + rest, sequence=sequence)
            yield RecordLocation(number, offset, len(header) + len(rest)), record
            if isinstance(record, UnreadableRecord):
                return
            offset += record.size_bytes
            sequence += 1


def read_record(folder: Path, place: RecordLocation, *, sequence: int) -> LogRecord:
    """Return the record at `place`; raises `DamagedStore` if it is not there as written."""
    file = segment_file(folder, place.segment)
    try:
        with machine_errors(file), file.open("rb") as stream:
            stream.seek(place.offset)
            data = stream.read(place.length)
    except StoreError as error:
        if file.exists():
            raise
        raise DamagedStore(
            f"{file}, which holds record {sequence}, is missing; restore it from a copy, or resume "
            "before it with agentrl train --resume --cut-damaged"
        ) from error
    record = unframe(data, sequence=sequence)
    if isinstance(record, UnreadableRecord):
        raise build_segment_error(file, place.offset, record.what)
    return record


class SegmentWriter:
    """Appends records. What `append` has returned from survives the end of this process."""

    def __init__(
        self,
        folder: Path,
        *,
        number: int,
        offset: int | None,
        sequence: int,
        limit_bytes: int,
        written: Callable[[Path], None] = lambda path: None,
    ) -> None:
        """Go on at `offset` of a segment, or begin it when that is None.

        Segments are closed when they pass `limit_bytes`. `written` hears of every file and folder
        that has to reach the disk.
        """
        self.folder = folder
        self.number = number
        self.file = segment_file(folder, number)
        """Segment that is written to."""
        self.sequence = sequence
        """The number of the next record: how many there are."""
        self._limit_bytes = limit_bytes
        self._written = written
        self._descriptor: int | None = None
        self._offset = 0
        self._broken = ""
        if offset is None:
            self._begin()
        else:
            self._open(offset)

    def append(self, kind: int, payload: bytes) -> tuple[int, RecordLocation]:
        """Write one record with the operating system; return its number and place.

        Raises `StoreError` if it cannot be written; then the log is as it was, or, where not even
        that could be mended, refuses whatever comes next.
        """
        if self._broken:
            raise StoreError(self._broken)
        data = frame(kind, self.sequence, payload)
        if self._offset > HEAD_BYTES and self._offset + len(data) > self._limit_bytes:
            self._next_segment()
        place = RecordLocation(self.number, self._offset, len(data))
        self._write(data)
        self._written(self.file)
        self._offset = place.end
        self.sequence += 1
        return self.sequence - 1, place

    def check_place(self) -> None:
        """Raise `StoreError` where the file that is written to is no longer at its path."""
        if self._descriptor is None:
            return
        try:
            is_there = os.path.samestat(os.fstat(self._descriptor), self.file.stat())
        except OSError:
            is_there = False
        if not is_there:
            raise StoreError(
                f"{self.file} was removed or moved while the run was writing it; put it back and "
                "resume the run, or start a new one, from the newest checkpoint with policy.path"
            )

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _write(self, data: bytes) -> None:
        descriptor = self._descriptor
        if descriptor is None:
            raise StoreError(f"{self.folder} is closed; open the store again")
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(descriptor, view) :]
        except OSError as error:
            # The rest of a record must not stand before the next one.
            what = (
                f"{self.file} could not be written: {error.strerror}; no recorded data is lost. "
                f"{disk_advice(error)}, and resume the run"
            )
            try:
                os.ftruncate(descriptor, self._offset)
            except OSError:
                self._broken = what
            raise StoreError(what) from error

    def _next_segment(self) -> None:
        self.close()
        self.number += 1
        self.file = segment_file(self.folder, self.number)
        self._begin()

    def _begin(self) -> None:
        head = _HEAD.pack(_MAGIC, FORMAT, self.number, self.sequence)
        partial = self.file.with_suffix(".partial")
        try:
            partial.write_bytes(head + _CHECK.pack(zlib.crc32(head)))
            partial.replace(self.file)
        except OSError as error:
            raise StoreError(
                f"{self.file} could not be created: {error.strerror}; no recorded data is lost. "
                f"{disk_advice(error)}, and resume the run"
            ) from error
        self._written(self.folder)
        self._open(HEAD_BYTES)

    def _open(self, offset: int) -> None:
        self._offset = offset
        with machine_errors(self.file):
            self._descriptor = os.open(self.file, os.O_WRONLY | os.O_APPEND)
        self._written(self.file)
