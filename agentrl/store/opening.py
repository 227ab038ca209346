"""Opening a store: the ledger catches up with the log, and the log's torn end is cut away.

A ledger that is not as it was written is made again: from the log, or where segments were pruned,
from the copy that was put aside over that, and the log after it.
"""

import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agentrl.store.blobs import BlobStore
from agentrl.store.codec import decode
from agentrl.store.errors import DamagedStore, StoreError, build_segment_error, machine_errors
from agentrl.store.index import StoreIndex, make_ledger
from agentrl.store.record import UnreadableRecord
from agentrl.store.segment import (
    HEAD_BYTES,
    RecordLocation,
    first_sequence,
    read_record,
    scan,
    segments,
)

Damaged = Literal["refuse", "cut"]
"""Treatment of a damaged log: `refuse` it, or move it aside from the damage on and go on from what
lies before."""

LEDGER = "ledger.sqlite"
PRUNED_LEDGER = "pruned.sqlite"
"""A copy of the ledger, made before segments are pruned: the log does not tell of them any more."""
SEGMENTS = "segments"


def check_position(position: int, *, step: int, end: int, pruned_for: int, folder: Path) -> None:
    """Raise `StoreError` for a checkpoint whose records are not in the store: not written up to its
    `position`, or pruned for a checkpoint at `pruned_for`."""
    if position and not end:
        raise StoreError(
            f"the checkpoint of step {step} has position {position}, but {folder} holds no record; "
            "restore that folder, or start a new run, from the checkpoint with policy.path"
        )
    if position > end:
        raise StoreError(
            f"the checkpoint of step {step} has position {position}, but {folder} ends at {end}: "
            "records it builds on are missing. Remove that checkpoint to resume from the one before"
        )
    if position < pruned_for:
        raise StoreError(
            f"the checkpoint of step {step} has position {position}, but groups trained before "
            f"{pruned_for} were pruned; resume from a newer checkpoint, or set store.keep: all in "
            "the next run"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEnd:
    """Position at which the log goes on."""

    segment: int = 0
    offset: int | None = None
    """None when the segment is yet to be begun."""
    sequence: int = 0
    torn_bytes: int = 0


def open_ledger(folder: Path, *, damaged: Damaged) -> tuple[StoreIndex, LogEnd]:
    """Return a store's ledger, which holds all that its log says, and the end of the log.

    Raises `DamagedStore` for a log that is not what was written, apart from a torn last record.
    """
    log = folder / SEGMENTS
    with machine_errors(log):
        log.mkdir(parents=True, exist_ok=True)
        for partial in log.glob("*.partial"):
            partial.unlink()
        return _open_ledger(folder, log, damaged=damaged)


def _open_ledger(folder: Path, log: Path, *, damaged: Damaged) -> tuple[StoreIndex, LogEnd]:
    if damaged == "cut":
        return _remake(folder, log, BlobStore(folder / "objects"))
    try:
        ledger = StoreIndex(folder / LEDGER)
    except DamagedStore:
        return _remake(folder, log, None)
    except StoreError:
        if (folder / LEDGER).exists():
            raise
        return _remake(folder, log, None)
    return ledger, _close_on_error(ledger, lambda: _catch_up(ledger, log, None))


def _remake(folder: Path, log: Path, objects: BlobStore | None) -> tuple[StoreIndex, LogEnd]:
    """Make the ledger again; with `objects` the log is cut where it, or one of them, is damaged."""
    files = segments(log)
    for file in files.values():
        # Of another version? Then its ledger stays as it is.
        with suppress(DamagedStore):
            first_sequence(file)
    base = _find_base(folder)
    if base is None and files and (first := min(files)) > 0:
        raise DamagedStore(
            f"{log} lacks segment {0:08d} to {first - 1:08d}, and {folder / LEDGER} and "
            f"{folder / PRUNED_LEDGER}, which record what was pruned, are missing or damaged; "
            "restore one of them from a copy together with its .check file, or start a new run "
            "whose policy.path is a checkpoint of this one"
        )
    try:
        if objects is not None and base is not None:
            _check_before(base, files, objects)
        make_ledger(folder / LEDGER, base=base)
        ledger = StoreIndex(folder / LEDGER)
        return ledger, _close_on_error(ledger, lambda: _catch_up(ledger, log, objects))
    except DamagedStore as error:
        if objects is None:
            raise
        raise DamagedStore(
            f"{folder} cannot be cut there, because segments were pruned: {error.damage}. Restore "
            "the file from a copy, or start a new run whose policy.path is a checkpoint of this one"
        ) from error


def _find_base(folder: Path) -> Path | None:
    """Return the copy of the ledger that knows what was pruned; None without a whole one."""
    file = folder / PRUNED_LEDGER
    try:
        StoreIndex(file, readonly=True).close()
    except DamagedStore:
        return None
    except StoreError:
        if file.exists():
            raise
        return None
    return file


def _close_on_error(ledger: StoreIndex, work: Callable[[], LogEnd]) -> LogEnd:
    try:
        return work()
    except BaseException:
        ledger.close()
        raise


def _catch_up(ledger: StoreIndex, log: Path, cut: BlobStore | None) -> LogEnd:
    """Enter what the ledger lacks. With `cut` the log ends at the first damage."""
    files = segments(log)
    _check_all_there(ledger, files, log, cut=cut is not None)
    last = ledger.last()
    at, sequence = (None, 0) if last is None else (last[1], last[0] + 1)
    if not files:
        # Segments are pruned only when there is a newer one.
        return LogEnd(segment=0 if at is None else at.segment + 1, sequence=sequence)
    if at is not None and at.segment in files:
        for number in files.keys() - ledger.list_pruned().keys():
            if number <= at.segment:
                first_sequence(files[number])
        _check_same(log, at, sequence=sequence - 1, files=files)
    end = LogEnd(segment=next(iter(files)), offset=HEAD_BYTES, sequence=sequence)
    for number, file in files.items():
        if at is not None and number < at.segment:
            continue
        offset = at.end if at is not None and number == at.segment else HEAD_BYTES
        if offset == HEAD_BYTES and number == max(files) and file.stat().st_size < HEAD_BYTES:
            # Its first record never reached the disk: the machine stopped.
            file.unlink()
            return LogEnd(segment=number, sequence=sequence)
        try:
            if offset == HEAD_BYTES and (first_record := first_sequence(file)) != sequence:
                raise build_segment_error(
                    file, 0, f"it starts with record {first_record}, not {sequence}"
                )
        except DamagedStore:
            if cut is None:
                raise
            return _cut_off(files, number, sequence=sequence)
        end, unreadable = _enter_all(ledger, file, offset=offset, sequence=sequence, cut=cut)
        sequence = end.sequence
        if unreadable is None:
            continue
        is_torn = unreadable.cause == "torn" and number == max(files)
        if cut is not None or is_torn:
            return _cut(files, end, keep=not is_torn)
        raise build_segment_error(file, end.offset or 0, unreadable.what)
    return end


def _enter_all(
    ledger: StoreIndex, file: Path, *, offset: int, sequence: int, cut: BlobStore | None
) -> tuple[LogEnd, UnreadableRecord | None]:
    number = int(file.stem)
    for place, record in scan(file, offset=offset, sequence=sequence):
        end = LogEnd(segment=number, offset=offset, sequence=sequence)
        if isinstance(record, UnreadableRecord):
            return end, record
        try:
            event = decode(record, cut)
        except DamagedStore as error:  # of an object: who does not cut reads none here
            return end, UnreadableRecord("damaged", str(error))
        ledger.enter(record.sequence, place, event)
        offset, sequence = place.end, record.sequence + 1
    return LogEnd(segment=number, offset=offset, sequence=sequence), None


def _check_before(base: Path, files: Mapping[int, Path], objects: BlobStore) -> None:
    """Raise `DamagedStore` for damage before the end of the ledger's copy, objects included.

    The log cannot be cut there: nothing but the copy tells what was pruned.
    """
    ledger = StoreIndex(base, readonly=True)
    try:
        last = ledger.last()
    finally:
        ledger.close()
    if last is None:
        return
    for number, file in files.items():
        if number > last[1].segment:
            return
        for place, record in scan(file, offset=HEAD_BYTES, sequence=first_sequence(file)):
            if number == last[1].segment and place.offset >= last[1].end:
                return
            if isinstance(record, UnreadableRecord):
                raise build_segment_error(file, place.offset, record.what)
            decode(record, objects)


def _cut_off(files: Mapping[int, Path], number: int, *, sequence: int) -> LogEnd:
    """Cut the log before a segment; it and what follows are kept beside it."""
    size = 0
    for later, file in files.items():
        if later >= number:
            size += file.stat().st_size
            file.rename(_find_free_name(file))
    return LogEnd(segment=number, sequence=sequence, torn_bytes=size)


def _cut(files: Mapping[int, Path], end: LogEnd, *, keep: bool) -> LogEnd:
    """Cut the log at `end`; what follows is kept beside it unless it is only a torn record."""
    file, offset = files[end.segment], end.offset or 0
    size = file.stat().st_size
    if keep:
        shutil.copyfile(file, _find_free_name(file))
        for number, later in files.items():
            if number > end.segment:
                size += later.stat().st_size
                later.rename(_find_free_name(later))
    os.truncate(file, offset)
    return LogEnd(
        segment=end.segment,
        offset=offset,
        sequence=end.sequence,
        torn_bytes=size - offset,
    )


def _check_all_there(
    ledger: StoreIndex, files: Mapping[int, Path], log: Path, *, cut: bool
) -> None:
    last = ledger.last()
    newest = max([*files, -1 if last is None else last[1].segment])
    missing = sorted(set(range(newest + 1)) - files.keys() - ledger.list_pruned().keys())
    if not missing or (cut and (last is None or missing[0] > last[1].segment)):
        return
    damage = f"{log} lacks segment {missing[0]:08d}, which was not pruned"
    raise DamagedStore(
        f"{damage}; restore the file from a copy, or resume before the damage with agentrl train "
        "--resume --cut-damaged",
        damage=damage,
    )


def _check_same(log: Path, at: RecordLocation, *, sequence: int, files: Mapping[int, Path]) -> None:
    size = files[at.segment].stat().st_size
    if size < at.end:
        raise build_segment_error(
            files[at.segment],
            size,
            f"it ends there, but record {sequence} was at byte {at.offset}: the machine stopped "
            "before the record was on disk (store.durable protects against that), or the file was "
            "truncated",
        )
    read_record(log, at, sequence=sequence)


def _find_free_name(file: Path) -> Path:
    number = 0
    while (free := file.with_name(f"{file.name}.{number}.damaged")).exists():
        number += 1
    return free
