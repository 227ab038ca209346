"""Errors of a session's files: the code's own, or the machine's. Mutants seen caught:

- no error told as the machine's, or all; a full disk told so of a session with a limit of its own,
  or of none: golden table
- a fault raised as an `OSError`: full-disk test of tests/system/sandbox/test_session.py
"""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from agentrl_sandbox.inside import files

WRITE = {"op": "write", "path": "a/b"}


@pytest.mark.parametrize(
    ("number", "bare", "bounded"),
    [
        (errno.ENOSPC, "fault", "OSError"),
        (errno.EDQUOT, "fault", "OSError"),
        (errno.EIO, "fault", "fault"),
        (errno.EROFS, "fault", "fault"),
        (errno.EMFILE, "fault", "fault"),
        (errno.ENOENT, "FileNotFoundError", "FileNotFoundError"),
        (errno.EISDIR, "IsADirectoryError", "IsADirectoryError"),
        (errno.ENAMETOOLONG, "OSError", "OSError"),
        (None, "OSError", "OSError"),
    ],
)
def test_errors_of_the_machine_are_told_from_those_of_the_code(
    number: int | None, bare: str, bounded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = OSError("over a limit") if number is None else OSError(number, os.strerror(number))

    def fail(*arguments: Any, **more: Any) -> None:
        raise error

    monkeypatch.setattr(files, "write", fail)
    for is_bare, wanted in ((True, bare), (False, bounded)):
        answer, data = files.serve("/", WRITE, b"", limit_bytes=1, is_bare=is_bare)
        assert data == b""
        assert answer.get("os_error", "fault") == wanted
        assert answer.get("text", answer.get("fault")) == str(error)


@pytest.mark.parametrize("op", ["write", "read", "entries"])
@pytest.mark.parametrize("path", ["\ud800", "a/\udfff/b", "a\0b", "/a", "a/../b"])
def test_a_path_that_is_none_is_an_answer(op: str, path: str, tmp_path: Path) -> None:
    """Kills: a path that no file system can have, which ends the keeper with its sessions."""
    body = {"op": op, "path": path, "after": ""}
    answer, _ = files.serve(str(tmp_path), body, b"", limit_bytes=1, is_bare=False)
    assert answer["os_error"] == "PermissionError"
    assert "is not a path below the session directory" in answer["text"]


def test_a_name_of_any_bytes_is_a_path(tmp_path: Path) -> None:
    name = os.fsdecode(b"\xff\xfe")
    files.write(str(tmp_path), name, b"x", limit_bytes=1)
    assert [entry[0] for entry in files.list_entries(str(tmp_path), ".")] == [name]
    assert files.read(str(tmp_path), name, limit_bytes=1) == b"x"
