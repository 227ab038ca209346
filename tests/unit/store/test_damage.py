"""Damaged files of a store: what comes back is the same or refused, and the advice ends it."""

import random
import shutil
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agentrl.store import index
from agentrl.store.errors import DamagedStore, StoreError
from agentrl.store.index import StoreIndex
from agentrl.store.page_checks import PAGE_BYTES, PageChecks, find_foreign_pages
from agentrl.store.reader import StoreReader
from agentrl.store.segment import HEAD_BYTES, segment_file, segments
from agentrl.store.settings import StoreSettings
from benchmarks.damage import BAD, MadeStore, make_store, try_damage, whole_of
from benchmarks.store import play_group
from tests.support.scripted_store import ScriptedStore, complete_groups


@pytest.fixture(scope="module", params=[False, True], ids=["all", "pruned"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> MadeStore:
    return make_store(tmp_path_factory.mktemp("made"), prunes=request.param)


def test_what_comes_back_of_a_damaged_store_is_the_same_or_refused(
    made: MadeStore, tmp_path: Path
) -> None:
    whole = whole_of(made, tmp_path)
    outcomes = [try_damage(made, whole, tmp_path, seed) for seed in range(8, 20)]
    assert [outcome for outcome in outcomes if outcome[0] in BAD] == []
    assert {"same", "cut"} <= {outcome for outcome, _ in outcomes}


def copied(made: MadeStore, folder: Path) -> Path:
    shutil.copytree(made.folder, folder / "copy")
    return folder / "copy"


def test_every_byte_of_a_ledger_is_checked(made: MadeStore, tmp_path: Path) -> None:
    folder = copied(made, tmp_path)
    ScriptedStore.open(folder, made.settings, resume=True).close()
    file = folder / "ledger.sqlite"
    data = file.read_bytes()
    draw = random.Random(0)
    for _ in range(200):
        at = draw.randrange(len(data))
        file.write_bytes(data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :])
        assert find_foreign_pages(file) == {at // PAGE_BYTES}
    file.write_bytes(data[:-1])
    assert find_foreign_pages(file) == {len(data) // PAGE_BYTES - 1}
    file.write_bytes(data)
    assert find_foreign_pages(file) == set()


def test_pages_that_sqlite_drops_from_a_damaged_log_are_missed(
    made: MadeStore, tmp_path: Path
) -> None:
    """A process was killed after frames had been copied into the file, and its log was damaged."""
    with ScriptedStore.open(tmp_path / "live") as store:
        play_group(store.log, 0)
        store.sync()
        database = store._ledger  # pyright: ignore[reportPrivateUsage]
        checks = PageChecks.read(database.file)
        assert checks is not None
        play_group(store.log, 1)
        database._base.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()  # pyright: ignore[reportPrivateUsage]
        for killed in ("killed", "damaged"):
            shutil.copytree(
                tmp_path / "live", tmp_path / killed, ignore=shutil.ignore_patterns("*-shm")
            )
    with closing(StoreIndex(tmp_path / "killed" / "ledger.sqlite")) as killed_ledger:
        assert killed_ledger.groups() == [0, 1]
    log = tmp_path / "damaged" / "ledger.sqlite-wal"
    data = bytearray(log.read_bytes())
    data[100] ^= 1
    log.write_bytes(data)
    with pytest.raises(DamagedStore, match="write-ahead log was changed after it was written"):
        StoreIndex(tmp_path / "damaged" / "ledger.sqlite")
    with ScriptedStore.open(tmp_path / "damaged", resume=True) as again:
        assert len(complete_groups(again.restore())) == 2


def test_a_whole_ledger_is_not_made_again(made: MadeStore, tmp_path: Path) -> None:
    folder = copied(made, tmp_path)
    before = (folder / "ledger.sqlite").stat().st_ino
    ScriptedStore.open(folder, made.settings, resume=True).close()
    assert (folder / "ledger.sqlite").stat().st_ino == before


@pytest.mark.parametrize("number", [0, -1])
def test_a_damaged_head_is_cut_once(tmp_path: Path, number: int) -> None:
    made = make_store(tmp_path, prunes=False)
    file = [*segments(made.folder / "segments").values()][number]
    file.write_bytes(bytes(file.stat().st_size))
    with (
        StoreReader(made.folder) as reader,
        pytest.raises(DamagedStore, match="--resume --cut-damaged"),
    ):
        list(reader.events())
    with ScriptedStore.open(made.folder, made.settings, resume=True, damaged="cut") as store:
        if number == 0:
            with pytest.raises(StoreError, match="holds no record; restore that folder"):
                store.restore(position=made.position, step=made.step)
        store.restore()
    with ScriptedStore.open(made.folder, made.settings, resume=True) as store:
        store.restore()
    assert not [*made.folder.glob("ledger*.damaged")]


@pytest.mark.parametrize("size", [0, HEAD_BYTES - 1])
def test_a_segment_without_a_whole_head_is_begun_again(tmp_path: Path, size: int) -> None:
    """The machine stopped before the first record of the segment was on the disk."""
    empty = tmp_path / "empty"
    ScriptedStore.open(empty).close()
    full = make_store(tmp_path, prunes=False).folder
    for folder in (empty, full):
        log = folder / "segments"
        number = max(segments(log)) + (folder == full)
        segment_file(log, number).write_bytes(bytes(size))
        with ScriptedStore.open(folder, resume=True) as store:
            groups = len(complete_groups(store.restore()))
            play_group(store.log, order=99)
        with ScriptedStore.open(folder, resume=True) as store:
            assert len(complete_groups(store.restore())) == groups + 1


def test_segments_that_a_killed_process_left_are_pruned(tmp_path: Path) -> None:
    made = make_store(tmp_path, prunes=True)
    left = segment_file(made.folder / "segments", 1)
    left.write_bytes(b"left")
    with ScriptedStore.open(made.folder, made.settings, resume=True) as store:
        store.restore(position=made.position, step=made.step)
        store.prune(position=0)
    assert not left.exists()


class WriteBetween:
    """A lock that somebody else has taken, and written under, when it is first asked for."""

    def __init__(self, write: Callable[[], object]) -> None:
        self._lock = threading.Lock()
        self._write: Callable[[], object] | None = write

    def __enter__(self) -> None:
        write, self._write = self._write, None
        if write is not None:
            write()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_what_is_written_while_the_log_is_emptied_leaves_no_page_unchecked(tmp_path: Path) -> None:
    """A log that is copied whole is begun anew by the next write, which forgets the pages in it."""
    file = tmp_path / "store" / "ledger.sqlite"
    with ScriptedStore.open(tmp_path / "store", StoreSettings()) as store:
        for order in range(8):
            play_group(store.log, order)
        own: Any = store._ledger  # pyright: ignore[reportPrivateUsage]
        own._writes = WriteBetween(lambda: play_group(store.log, 8))
        own.sync()
        assert find_foreign_pages(file) == set()
        play_group(store.log, 9)
        assert find_foreign_pages(file) == set()


@pytest.mark.parametrize("reads", [False, True])
def test_the_ledgers_write_ahead_log_stays_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, reads: bool
) -> None:
    monkeypatch.setattr(index, "LOG_BYTES", limit := 2**20)
    log = tmp_path / "store" / "ledger.sqlite-wal"
    largest = 0
    with ScriptedStore.open(tmp_path / "store", StoreSettings()) as store:
        reader = StoreReader(tmp_path / "store") if reads else None
        for order in range(40):
            play_group(store.log, order)
            if reader is not None:
                assert len(reader.trajectories(order)) == 8
            largest = max(largest, log.stat().st_size)
        if reader is not None:
            reader.close()
    assert largest < 3 * limit, "what 64 records take beyond the limit"
