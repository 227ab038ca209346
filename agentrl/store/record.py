"""One record of the log: a header with its own check, then a payload with another.

    magic 2 | kind 1 | 0 1 | payload bytes 4 | sequence 8 | CRC of payload 4 | CRC of header 4

Little-endian. The header's own check tells a file that merely ends early (its last record is torn,
which a killed process leaves behind) from one whose length field is wrong.
"""

import struct
import zlib
from dataclasses import dataclass
from typing import Literal

_FIELDS = struct.Struct("<2sBBIQI")
_CHECK = struct.Struct("<I")
_MAGIC = b"aR"

HEADER_BYTES = _FIELDS.size + _CHECK.size
MAX_PAYLOAD_BYTES = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRecord:
    """A whole and undamaged record."""

    kind: int
    sequence: int
    payload: bytes

    @property
    def size_bytes(self) -> int:
        """Size of the record in the file."""
        return HEADER_BYTES + len(self.payload)


@dataclass(frozen=True, slots=True)
class UnreadableRecord:
    """Reason for a missing record. `torn`: the file ends within it, and nothing else is wrong."""

    cause: Literal["torn", "damaged"]
    what: str


def frame(kind: int, sequence: int, payload: bytes) -> bytes:
    """Return a record's bytes; raises `ValueError` for a payload over two gigabytes."""
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise ValueError(
            f"a record has {len(payload)} bytes, but the maximum is {MAX_PAYLOAD_BYTES}; record "
            "fewer tokens at a time"
        )
    fields = _FIELDS.pack(_MAGIC, kind, 0, len(payload), sequence, zlib.crc32(payload))
    return fields + _CHECK.pack(zlib.crc32(fields)) + payload


def payload_bytes(header: bytes) -> int | UnreadableRecord:
    """Return the number of bytes that follow a header, or the reason it is none."""
    if len(header) < HEADER_BYTES:
        return UnreadableRecord("torn", f"{len(header)} of a header's {HEADER_BYTES} bytes")
    fields = header[: _FIELDS.size]
    (check,) = _CHECK.unpack_from(header, _FIELDS.size)
    magic, _, zero, length, _, _ = _FIELDS.unpack(fields)
    if magic != _MAGIC or zero != 0 or check != zlib.crc32(fields):
        return UnreadableRecord("damaged", "a record's header does not match its checksum")
    return length


def unframe(data: bytes, *, sequence: int) -> LogRecord | UnreadableRecord:
    """Return the record that `data` begins with, which has to be number `sequence`."""
    length = payload_bytes(data)
    if isinstance(length, UnreadableRecord):
        return length
    _, kind, _, _, number, check = _FIELDS.unpack_from(data)
    if number != sequence:
        return UnreadableRecord("damaged", f"record {number} in place of record {sequence}")
    payload = data[HEADER_BYTES : HEADER_BYTES + length]
    if len(payload) < length:
        return UnreadableRecord("torn", f"{len(payload)} of record {sequence}'s {length} bytes")
    if check != zlib.crc32(payload):
        return UnreadableRecord(
            "damaged", f"the bytes of record {sequence} do not match their checksum"
        )
    return LogRecord(kind=kind, sequence=sequence, payload=payload)
