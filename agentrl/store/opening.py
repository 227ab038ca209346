"""Opening a store: the ledger catches up with the log, and the log's torn end is cut away."""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agentrl.store.codec import decode
from agentrl.store.damage import DamagedStore, StoreError, damaged_segment
from agentrl.store.ledger import Ledger
from agentrl.store.record import Unreadable
from agentrl.store.segment import (
    HEAD_BYTES,
    Place,
    first_sequence,
    read_record,
    scan,
    segments,
)

Damaged = Literal["refuse", "cut"]
"""What to do about a damaged log: `refuse` it, or move it aside from the damage on and go on from
what lies before."""

LEDGER = "ledger.sqlite"
SEGMENTS = "segments"


def check_position(position: int, *, step: int, end: int, pruned_for: int, folder: Path) -> None:
    """Raise `StoreError` for a checkpoint whose records are not in the store: not written up to its
    `position`, or pruned for a checkpoint at `pruned_for`."""
    if position > end:
        raise StoreError(
            f"the checkpoint of step {step} has position {position}, and {folder} ends at {end}: "
            "records it builds on are missing. Remove that checkpoint to resume from the one before"
        )
    if position < pruned_for:
        raise StoreError(
            f"the checkpoint of step {step} has position {position}, and groups trained before "
            f"{pruned_for} were pruned; resume from a newer checkpoint, or set store.keep: all "
            "in the next run"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """Where the log goes on."""

    segment: int = 0
    offset: int | None = None
    """None when the segment is yet to be begun."""
    sequence: int = 0
    torn_bytes: int = 0


def open_ledger(folder: Path, *, damaged: Damaged) -> tuple[Ledger, End]:
    """Return a store's ledger, which holds all that its log says, and the end of the log.

    Raises `DamagedStore` for a log that is not what was written, apart from a torn last record.
    """
    log = folder / SEGMENTS
    log.mkdir(parents=True, exist_ok=True)
    for partial in log.glob("*.partial"):
        partial.unlink()
    if damaged == "cut":
        _set_ledger_aside(folder)
    ledger = Ledger(folder / LEDGER)
    try:
        return ledger, _catch_up(ledger, log, cut=damaged == "cut")
    except BaseException:
        ledger.close()
        raise


def _catch_up(ledger: Ledger, log: Path, *, cut: bool) -> End:
    files = segments(log)
    _check_all_there(ledger, files, log, cut=cut)
    last = ledger.last()
    at, sequence = (None, 0) if last is None else (last[1], last[0] + 1)
    if not files:
        # Segments are pruned only when there is a newer one.
        return End(segment=0 if at is None else at.segment + 1, sequence=sequence)
    if at is not None and at.segment in files:
        _check_same(log, at, sequence=sequence - 1, files=files)
    end = End(segment=next(iter(files)), offset=HEAD_BYTES, sequence=sequence)
    for number, file in files.items():
        if at is not None and number < at.segment:
            continue
        offset = at.end if at is not None and number == at.segment else HEAD_BYTES
        if offset == HEAD_BYTES and (found := first_sequence(file)) != sequence:
            raise damaged_segment(file, 0, f"it begins with record {found}, not {sequence}")
        end, unreadable = _enter_all(ledger, file, offset=offset, sequence=sequence)
        sequence = end.sequence
        if unreadable is None:
            continue
        is_last = number == max(files)
        if cut or (unreadable.cause == "torn" and is_last):
            return _cut(files, end, keep=not (unreadable.cause == "torn" and is_last))
        raise damaged_segment(file, end.offset or 0, unreadable.what)
    return end


def _enter_all(
    ledger: Ledger, file: Path, *, offset: int, sequence: int
) -> tuple[End, Unreadable | None]:
    """Enter a segment's records from `offset` on; return where they end, and what stands there."""
    number = int(file.stem)
    for place, record in scan(file, offset=offset, sequence=sequence):
        if isinstance(record, Unreadable):
            return End(segment=number, offset=offset, sequence=sequence), record
        ledger.enter(record.sequence, place, decode(record, None))
        offset, sequence = place.end, record.sequence + 1
    return End(segment=number, offset=offset, sequence=sequence), None


def _cut(files: Mapping[int, Path], end: End, *, keep: bool) -> End:
    """Cut the log at `end`; what follows is kept beside it unless it is only a torn record."""
    file, offset = files[end.segment], end.offset or 0
    size = file.stat().st_size
    if keep:
        shutil.copyfile(file, _aside(file))
        for number, later in files.items():
            if number > end.segment:
                size += later.stat().st_size
                later.rename(_aside(later))
    os.truncate(file, offset)
    return End(
        segment=end.segment,
        offset=offset,
        sequence=end.sequence,
        torn_bytes=size - offset,
    )


def _check_all_there(ledger: Ledger, files: Mapping[int, Path], log: Path, *, cut: bool) -> None:
    last = ledger.last()
    newest = max([*files, -1 if last is None else last[1].segment])
    missing = sorted(set(range(newest + 1)) - files.keys() - ledger.pruned().keys())
    if not missing or (cut and missing[0] > min(files, default=0)):
        return
    raise DamagedStore(
        f"{log} lacks segment {missing[0]:08d}, which was not pruned"
        + ("" if last is not None else f", or {LEDGER}, which knew of the pruning, is gone")
        + "; bring the file back from a copy, or start a new run"
    )


def _check_same(log: Path, at: Place, *, sequence: int, files: Mapping[int, Path]) -> None:
    """Check that the log still holds the newest record the ledger has entered."""
    size = files[at.segment].stat().st_size
    if size < at.end:
        raise damaged_segment(
            files[at.segment],
            size,
            f"it ends there, and record {sequence} was at byte {at.offset}: the machine stopped "
            "before the record was on the disk (store.durable guards against that), or the file "
            "was cut",
        )
    read_record(log, at, sequence=sequence)


def _set_ledger_aside(folder: Path) -> None:
    """Let the ledger be made again from the log; raises `DamagedStore` if the log is not whole."""
    file = folder / LEDGER
    if not file.exists():
        return
    try:
        ledger = Ledger(file)
        pruned = ledger.pruned()
        ledger.close()
    except DamagedStore:
        pruned = {}
    if pruned:
        raise DamagedStore(
            f"{folder} cannot be cut: segments {sorted(pruned)} were pruned, and the ledger cannot "
            "be made again without them; bring the damaged file back from a copy, or start a new "
            "run from the newest checkpoint"
        )
    for part in folder.glob(f"{LEDGER}*"):
        if ".damaged" not in part.name:
            part.rename(_aside(part))


def _aside(file: Path) -> Path:
    """Return a free name beside a file."""
    number = 0
    while (free := file.with_name(f"{file.name}.{number}.damaged")).exists():
        number += 1
    return free
