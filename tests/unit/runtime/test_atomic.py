"""Folders that appear whole and durable, and the first error of a disk that takes no more.

Mutants seen caught: a folder renamed before its files are on the disk; one left behind by an error;
the last error told, or the cleanup's; an error of our own that loses its words; a full disk told as
a damaged ledger.
"""

import errno
import os
import resource
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import ConfigError
from agentrl.runtime.atomic_files import (
    DISK_ERRORS,
    DiskError,
    disk_advice,
    first_disk_error,
    lines_file,
    new_folder,
    write_text,
)
from agentrl.store.errors import DamagedStore, StoreError
from benchmarks.store import play_group
from tests.support.rights import read_rights
from tests.support.scripted_store import ScriptedStore


def test_the_files_of_a_folder_have_the_rights_of_new_ones(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.touch(mode=0o600)
    with new_folder(tmp_path / "made") as partial:
        (partial / "below").mkdir(parents=True)
        (partial / "below" / "weights").touch(mode=0o600)
        (partial / "below" / "link").symlink_to(secret)
    (tmp_path / "new").touch()
    assert read_rights(tmp_path / "made" / "below" / "weights") == read_rights(tmp_path / "new")
    assert read_rights(secret) == 0o600


def test_a_folder_is_on_the_disk_before_it_appears(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[str, bool]] = []
    sync = os.fsync

    def record(descriptor: int) -> None:
        synced.append((Path(f"/proc/self/fd/{descriptor}").resolve().name, path.exists()))
        sync(descriptor)

    path = tmp_path / "policy"
    monkeypatch.setattr(os, "fsync", record)
    with new_folder(path) as partial:
        (partial / "deep").mkdir(parents=True)
        (partial / "config.json").write_text("{}")
        (partial / "deep" / "weights").write_bytes(b"x")
    assert {name for name, appeared in synced if not appeared} == {
        "config.json",
        "weights",
        "deep",
        ".policy.partial",
    }
    assert [name for name, appeared in synced if appeared] == [tmp_path.name]


def test_an_error_leaves_no_folder(tmp_path: Path) -> None:
    (tmp_path / ".policy.partial").mkdir()  # of a process that was killed
    with pytest.raises(KeyboardInterrupt), new_folder(tmp_path / "policy") as partial:
        break_off(partial)
    assert not [*tmp_path.iterdir()]


def break_off(partial: Path) -> None:
    partial.mkdir()
    (partial / "config.json").write_text("{")
    raise KeyboardInterrupt


def full(place: str = "/disk/file", code: int = errno.ENOSPC) -> OSError:
    return OSError(code, os.strerror(code), place)


def break_and_clean_up(first: Exception, *later: Exception) -> None:
    """Raise the first error, and each later one while what is open is closed after it."""
    if not later:
        raise first
    try:
        break_and_clean_up(first, *later[:-1])
    finally:
        raise later[-1]


def test_the_first_error_of_the_disk_is_told(tmp_path: Path) -> None:
    said = r"^/disk/file could not be written: No space left on device; .*Free space .*--resume"
    with pytest.raises(DiskError, match=said), first_disk_error(tmp_path):
        break_and_clean_up(full(), ValueError("not closed"), full("/disk/other"))
    of_library = RuntimeError("I/O error: No space left on device (os error 28)")
    said = rf"^{tmp_path} could not be written"
    with pytest.raises(DiskError, match=said), first_disk_error(tmp_path):
        raise of_library


def test_the_way_out_is_that_of_the_error() -> None:
    advice = {code: disk_advice(OSError(code, os.strerror(code))) for code in DISK_ERRORS}
    assert [code for code, said in advice.items() if said.startswith("Free space")] == [
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EFBIG,
    ]
    assert advice[errno.EROFS] == "Mount the disk writable"
    assert advice[errno.EIO].startswith("Check the disk")
    assert disk_advice("attempt to write a readonly database") == "Make its folder writable"


def test_a_file_that_a_full_disk_does_not_take_is_named(tmp_path: Path) -> None:
    """Mutants seen caught: the name left out; put into every error without one."""
    path = tmp_path / "gold.jsonl"
    partial = tmp_path / f".gold.jsonl.{os.getpid()}.partial"
    partial.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as failure:
        write_text(path, "a line")
    assert failure.value.filename == str(path)
    partial.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as failure, lines_file(path) as write:
        write("a line" * 10_000)
    assert failure.value.filename == str(path)
    with pytest.raises(ConnectionResetError) as failure, lines_file(path) as write:
        raise ConnectionResetError(errno.ECONNRESET, "an environment's own")
    assert failure.value.filename is None
    assert not [*tmp_path.iterdir()]


def test_an_error_that_has_words_keeps_them(tmp_path: Path) -> None:
    told = StoreError("the log could not be written: make room")
    told.__cause__ = full()
    later = StoreError("the ledger could not be synced")
    with (
        pytest.raises(StoreError, match=r"^the log could not be written"),
        first_disk_error(tmp_path),
    ):
        break_and_clean_up(told, later, full())


def test_other_errors_rise_as_they_are(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="second"), first_disk_error(tmp_path):
        break_and_clean_up(full(code=errno.ENOENT), ConfigError("second"))


@given(
    place=st.integers(0, 4),
    codes=st.lists(st.sampled_from([*DISK_ERRORS, errno.ENOENT]), min_size=5, max_size=5),
)
def test_whatever_breaks_after_it_the_first_is_told(place: int, codes: list[int]) -> None:
    errors: list[Exception] = [ValueError(str(number)) for number in range(place)]
    errors += [full(f"/disk/{number}", code) for number, code in enumerate(codes)]
    of_disk = [n for n, code in enumerate(codes) if code in DISK_ERRORS]
    wanted = f"/disk/{of_disk[0]} " if of_disk else os.strerror(errno.ENOENT)
    with (
        pytest.raises(DiskError if of_disk else OSError, match=wanted),
        first_disk_error(Path("/run")),
    ):
        break_and_clean_up(*errors)


@contextmanager
def disk_of(limit_bytes: int) -> Generator[None]:
    """Let the kernel refuse to write more than so much into one file, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def play_groups(store: ScriptedStore) -> None:
    for order in range(100):
        play_group(store.log, order)


@pytest.mark.parametrize("limit_bytes", [0, 1000, 5000, 50_000])
def test_a_store_on_a_full_disk_is_not_damaged(tmp_path: Path, limit_bytes: int) -> None:
    folder = tmp_path / "store"
    with (
        pytest.raises(StoreError, match=r"[Ff]ree space on the disk") as refused,
        disk_of(limit_bytes),
        ScriptedStore.open(folder) as store,
    ):
        play_groups(store)
    assert not isinstance(refused.value, DamagedStore)
    with ScriptedStore.open(folder, resume=True) as store:
        if store.position:
            store.restore()
        play_group(store.log, 100)
