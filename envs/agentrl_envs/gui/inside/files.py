"""The files of a desktop: put there before an episode, read after it, and never waited for."""

import os
import shutil
import stat
from collections.abc import Iterator


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


def empty(root: str, *, but: str = "") -> None:
    """Remove everything in a directory, and not itself, nor names that begin with `but`."""
    for entry in os.scandir(root):
        if but and entry.name.startswith(but):
            continue
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)
