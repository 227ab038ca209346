"""Files of a desktop, read while programs go on with them.

Mutants seen caught: a folder is opened as a file; its descriptor is kept; a file that goes while it
is looked at ends the listing; what took the place of a file that stays is taken for it; a folder
that stays is not looked into.
"""

import os
from pathlib import Path

import pytest

from agentrl_envs.gui.inside import files


def test_what_is_no_file_is_not_read_and_leaves_nothing_open(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"text")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    os.mkfifo(tmp_path / "pipe")
    before = len(os.listdir("/proc/self/fd"))
    for name in ("folder", "link", "pipe", "nothing", "file/below"):
        assert files.read(str(tmp_path / name), 100) is None
    assert files.read(str(tmp_path / "file"), 4) == b"text"
    assert files.read(str(tmp_path / "file"), 3) is None
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_goes_while_it_is_looked_at_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).touch()
    (tmp_path / "folder").mkdir()
    look = os.lstat

    def slow(path: str) -> os.stat_result:
        if path.endswith("one"):
            os.unlink(path)
        return look(path)

    monkeypatch.setattr(os, "lstat", slow)
    assert files.list_below(str(tmp_path), 10) == [("folder", "folder"), ("two", "file")]


def test_only_what_was_there_stays(tmp_path: Path) -> None:
    (tmp_path / "bus" / "services").mkdir(parents=True)
    (tmp_path / "bus" / "socket").touch()
    (tmp_path / "replaced").touch()
    own = files.identify(str(tmp_path))
    (tmp_path / "bus" / "services" / "left").touch()
    (tmp_path / "folder" / "below").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "bus")
    (tmp_path / "other").touch()
    (tmp_path / "other").rename(tmp_path / "replaced")
    files.empty(str(tmp_path), but=own)
    assert files.list_below(str(tmp_path), 10) == [
        ("bus", "folder"), ("bus/services", "folder"), ("bus/socket", "file"),
    ]  # fmt: skip
    files.empty(str(tmp_path))
    assert not list(tmp_path.iterdir())
