"""The files of a desktop: put there before an episode, read after it, and never waited for."""

import os
import shutil
import stat
from collections.abc import Collection, Iterator

Identity = tuple[str, int]
"""Path of a file or directory, and its number: what is put in its place has another."""


def write(path: str, data: bytes, mode: int, changed_s: float) -> None:
    """Write a file, and the directories to it."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)
    os.chmod(path, mode)
    os.utime(path, (changed_s, changed_s))


def read(path: str, most_bytes: int) -> bytes | None:
    """Return the content of a regular file; None where there is none of at most so many bytes."""
    try:
        # A pipe or a link somebody left there must not make us wait, nor lead elsewhere.
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            return None
        with open(opened, "rb", closefd=False) as file:
            data = file.read(most_bytes + 1)
    finally:
        os.close(opened)
    return data if len(data) <= most_bytes else None


def list_below(root: str, most: int) -> list[tuple[str, str]]:
    """Return the paths below a directory, with what is there: `file`, `folder` or `other`."""
    entries: list[tuple[str, str]] = []
    for path, kind in _walk(root):
        if len(entries) == most:
            break
        entries.append((os.path.relpath(path, root), kind))
    return sorted(entries)


def _walk(root: str) -> Iterator[tuple[str, str]]:
    for folder, folders, names in os.walk(root):
        for name in folders:
            path = os.path.join(folder, name)
            yield path, "other" if os.path.islink(path) else "folder"
        for name in names:
            path = os.path.join(folder, name)
            try:
                is_file = stat.S_ISREG(os.lstat(path).st_mode)
            except FileNotFoundError:
                continue  # removed while we looked
            yield path, "file" if is_file else "other"


def identify(*roots: str) -> set[Identity]:
    """Return the identity of everything below some directories."""
    return {(path, os.lstat(path).st_ino) for root in roots for path, _ in _walk(root)}


def empty(root: str, *, but: Collection[Identity] = ()) -> None:
    """Remove everything in a directory but itself and what has one of these identities."""
    for entry in os.scandir(root):
        is_kept = (entry.path, entry.stat(follow_symlinks=False).st_ino) in but
        if not entry.is_dir(follow_symlinks=False):
            if not is_kept:
                os.unlink(entry.path)
        elif is_kept:
            empty(entry.path, but=but)
        else:
            shutil.rmtree(entry.path)
