"""Records and segments: what is torn, what is damaged, and that nothing else is ever read.

Mutants seen caught: either check or the number ignored; part of a record left on a full disk.
"""

import resource
import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.store.errors import DamagedStore, StoreError
from agentrl.store.record import HEADER_BYTES, LogRecord, UnreadableRecord, frame, unframe
from agentrl.store.segment import (
    HEAD_BYTES,
    RecordLocation,
    SegmentWriter,
    first_sequence,
    read_record,
    scan,
    segments,
)

PAYLOADS = [b"one", b"", b"three" * 40]


def written(folder: Path, *, limit_bytes: int = 2**20, payloads: list[bytes] = PAYLOADS) -> Path:
    """Write a log of these records and return its newest file."""
    folder.mkdir(parents=True, exist_ok=True)
    log = SegmentWriter(folder, number=0, offset=None, sequence=0, limit_bytes=limit_bytes)
    for payload in payloads:
        log.append(7, payload)
    log.close()
    return log.file


def found(file: Path, sequence: int = 0) -> list[LogRecord | UnreadableRecord]:
    """Return what a scan of a whole segment yields."""
    return [record for _, record in scan(file, offset=HEAD_BYTES, sequence=sequence)]


@given(st.integers(0, 255), st.integers(0, 2**64 - 1), st.binary(max_size=300))
def test_a_record_is_read_as_it_was_written(kind: int, sequence: int, payload: bytes) -> None:
    record = unframe(frame(kind, sequence, payload) + b"next", sequence=sequence)
    assert record == LogRecord(kind=kind, sequence=sequence, payload=payload)


def test_the_bytes_of_a_record_are_fixed() -> None:
    """A store written today is read by every later version of this format."""
    data = frame(2, 5, b"abc").hex(" ")
    assert data == (
        "61 52 02 00 03 00 00 00 05 00 00 00 00 00 00 00 c2 41 24 35 9b cd b0 d1 61 62 63"
    )


@given(st.binary(max_size=80), st.data())
def test_a_cut_record_is_torn_and_nothing_else(payload: bytes, data: st.DataObject) -> None:
    whole = frame(1, 3, payload)
    length = data.draw(st.integers(0, len(whole) - 1))
    answer = unframe(whole[:length], sequence=3)
    assert isinstance(answer, UnreadableRecord)
    assert answer.cause == "torn"


def test_every_flipped_bit_is_damage_and_never_a_torn_end() -> None:
    """Also in the length, which would otherwise make a record look longer than its file."""
    whole = frame(1, 3, b"payload")
    for bit in range(8 * len(whole)):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        answer = unframe(bytes(changed), sequence=3)
        assert isinstance(answer, UnreadableRecord), f"bit {bit} was not noticed"
        assert answer.cause == "damaged", f"bit {bit}: {answer}"


def test_a_record_of_another_place_is_damage() -> None:
    answer = unframe(frame(1, 3, b"payload"), sequence=4)
    assert answer == UnreadableRecord("damaged", "record 3 in place of record 4")


def test_a_segment_cut_at_any_byte_keeps_every_whole_record(tmp_path: Path) -> None:
    file = written(tmp_path / "log")
    whole = file.read_bytes()
    ends = [HEAD_BYTES]
    for payload in PAYLOADS:
        ends.append(ends[-1] + HEADER_BYTES + len(payload))
    for length in range(HEAD_BYTES, len(whole) + 1):
        file.write_bytes(whole[:length])
        records = found(file)
        kept = sum(end <= length for end in ends[1:])
        assert [r.payload for r in records if isinstance(r, LogRecord)] == PAYLOADS[:kept]
        torn = [r.cause for r in records if isinstance(r, UnreadableRecord)]
        assert torn == ([] if length in ends else ["torn"])


def test_segments_follow_each_other(tmp_path: Path) -> None:
    payloads = [bytes([n]) * 50 for n in range(9)]
    written(tmp_path, limit_bytes=250, payloads=payloads)
    files = segments(tmp_path)
    assert len(files) > 2
    assert max(f.stat().st_size for f in files.values()) <= 250
    read: list[bytes] = []
    for file in files.values():
        assert first_sequence(file) == len(read)
        read += [r.payload for r in found(file, len(read)) if isinstance(r, LogRecord)]
    assert read == payloads


def test_a_record_larger_than_a_segment_has_one_to_itself(tmp_path: Path) -> None:
    written(tmp_path, limit_bytes=100, payloads=[b"a" * 500, b"b" * 500])
    assert [f.stat().st_size for f in segments(tmp_path).values()] == [500 + 24 + HEAD_BYTES] * 2


def test_damage_is_named_by_file_and_place(tmp_path: Path) -> None:
    file = written(tmp_path)
    place = RecordLocation(0, HEAD_BYTES, HEADER_BYTES + 3)
    assert read_record(tmp_path, place, sequence=0).payload == b"one"
    changed = bytearray(file.read_bytes())
    changed[HEAD_BYTES + HEADER_BYTES] ^= 1
    file.write_bytes(changed)
    with pytest.raises(
        DamagedStore, match=rf"{file} is damaged at byte {HEAD_BYTES}: .*--cut-damaged"
    ):
        read_record(tmp_path, place, sequence=0)
    file.unlink()
    with pytest.raises(DamagedStore, match="is missing"):
        read_record(tmp_path, place, sequence=0)


@pytest.mark.parametrize("head", ["short", "other magic", "other check"])
def test_a_wrong_head_is_refused(tmp_path: Path, head: str) -> None:
    file = written(tmp_path, payloads=[])
    data = file.read_bytes()
    changed = {"short": data[:-1], "other magic": b"x" + data[1:], "other check": data[:-1] + b"x"}
    file.write_bytes(changed[head])
    with pytest.raises(DamagedStore, match="damaged at byte 0"):
        first_sequence(file)


def test_a_full_disk_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    """The part of a record that still fitted must not stand before the next one."""
    log = SegmentWriter(tmp_path, number=0, offset=None, sequence=0, limit_bytes=2**20)
    log.append(1, b"before")
    size = log.file.stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 50, limits[1]))
    try:
        with pytest.raises(StoreError, match=r"could not be written: File too large.*Free space"):
            log.append(1, b"x" * 500)
        assert log.file.stat().st_size == size
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    log.append(1, b"after")
    log.close()
    assert [r.payload for r in found(log.file) if isinstance(r, LogRecord)] == [b"before", b"after"]
