"""Cleaning up after a session, where its directory is the host's, touches nothing else.

A session of the `process` back-end may replace its own directory by a link to any place before it
is removed. Played out as an attack, one mistake here would change the machine that runs the test;
so the functions are called, on bait.
"""

import contextlib
import os
import stat
from pathlib import Path

import pytest

from agentrl_sandbox.inside import files, session_directory


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """Return a directory that belongs to somebody else."""
    top = tmp_path / "precious"
    (top / "below").mkdir(parents=True)
    (top / "below" / "file").write_bytes(bytes(4096))
    for path in (top, top / "below"):
        path.chmod(0o755)
    return top


def modes(top: Path) -> list[str]:
    return [stat.filemode(path.stat().st_mode) for path in (top, top / "below")]


def test_a_directory_that_became_a_link_is_not_followed(tmp_path: Path, precious: Path) -> None:
    """Else everything below the link's target, `/` for example, would lose its permissions."""
    before = modes(precious)
    session = tmp_path / "session"
    session.symlink_to(precious)
    with contextlib.suppress(OSError):  # refusing is fine, too
        files.remove_tree(str(session))
    assert modes(precious) == before
    assert (precious / "below" / "file").exists()


def test_a_directory_that_became_a_link_holds_nothing(tmp_path: Path, precious: Path) -> None:
    session = session_directory.make_bare(str(tmp_path), 1)
    try:
        Path(session.path).rmdir()
        Path(session.path).symlink_to(precious)
        with contextlib.suppress(OSError):  # there is nothing to measure any more
            assert files.count_bytes(session.handle) == 0
    finally:
        session.close()


def test_a_link_inside_is_removed_and_not_followed(tmp_path: Path, precious: Path) -> None:
    before = modes(precious)
    session = tmp_path / "session"
    (session / "closed").mkdir(parents=True)
    (session / "link").symlink_to(precious)
    (session / "closed" / "link").symlink_to(precious / "below")
    (session / "closed").chmod(0)
    files.remove_tree(str(session))
    assert modes(precious) == before
    assert not session.exists()


def test_a_directory_too_deep_for_any_path_is_removed(tmp_path: Path) -> None:
    """200 times 200 characters: six times what a path may have."""
    session = tmp_path / "session"
    session.mkdir()
    here = os.open(session, os.O_RDONLY)
    for _ in range(200):
        os.mkdir("d" * 200, dir_fd=here)
        below = os.open("d" * 200, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    files.remove_tree(str(session))
    assert not session.exists()
