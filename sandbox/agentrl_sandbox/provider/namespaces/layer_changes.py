"""Changes of a container: its own layer, compared with the layers of its image."""

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

from agentrl.sandbox_provider import FileChange
from agentrl_sandbox.inside import kernel

_OPAQUE = "user.overlay.opaque"
_OPENAT2 = 437
_NO_SYMLINKS, _BENEATH = 0x04, 0x08
_PASSED_OVER = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)
"""Errors of a folder that a running container took away, or whose path no program opens."""


def find_changes(upper: Path, layers: Sequence[Path]) -> list[FileChange]:
    """Return the changes of an upper layer to those below it, the last of which is first.

    A container may run meanwhile: no link is followed, and what is gone when it is looked into is
    left out. Folders whose path is longer than the kernel opens are told, and not looked into;
    those that differ in nothing but their time are not told.
    """
    changes: list[FileChange] = []
    alike: set[str] = set()
    upper_fd = os.open(upper, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    waiting: list[tuple[str, Sequence[Path], bool]] = [("", layers, False)]
    try:
        while waiting:
            folder, below, is_hiding = waiting.pop()
            try:
                folder_fd = _open_below(upper_fd, f".{folder}")
            except OSError as error:
                if error.errno not in _PASSED_OVER:
                    raise
                continue
            try:
                if below and _has_attributes(folder_fd, below[0]):
                    alike.add(folder)
                is_hiding = is_hiding or _is_opaque(folder_fd)
                for change, merged in _compare_folder(folder_fd, folder, below, is_hiding):
                    changes.append(change)
                    if merged is not None:
                        waiting.append((change.path, merged, is_hiding))
            finally:
                os.close(folder_fd)
    finally:
        os.close(upper_fd)
    differing = [change.path for change in changes if change.path not in alike]
    paths = {*differing, *(str(parent) for path in differing for parent in Path(path).parents)}
    return [change for change in changes if change.path in paths]


def _compare_folder(
    folder_fd: int, folder: str, below: Sequence[Path], is_hiding: bool
) -> Iterator[tuple[FileChange, Sequence[Path] | None]]:
    """Yield the changes in one folder, each with the image's folders where it is one itself.

    An opaque folder, and each in it, is hiding those of the image: what it lacks is deleted.
    """
    with os.scandir(folder_fd) as entries:
        rows = sorted(entries, key=lambda entry: entry.name)
    if is_hiding:
        for name in sorted(_list_names(below) - {entry.name for entry in rows}):
            yield FileChange(f"{folder}/{name}", "deleted"), None
    for entry in rows:
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        path = f"{folder}/{entry.name}"
        places = [place / entry.name for place in below]
        places = [place for place in places if os.path.lexists(place)]
        is_in_image = bool(places) and not _is_whiteout(os.lstat(places[0]))
        if _is_whiteout(status):
            if is_in_image:
                yield FileChange(path, "deleted"), None
            continue
        merged = _list_merged(places) if is_in_image else []
        is_folder = stat.S_ISDIR(status.st_mode)
        if not is_in_image:
            change = FileChange(path, "added")
        else:
            change = FileChange(path, "modified" if is_folder == bool(merged) else "deleted")
        yield change, merged if is_folder else None


def _open_below(folder_fd: int, path: str) -> int:
    """Open a folder below another one, through no link."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    how = struct.pack("=QQQ", flags, 0, _NO_SYMLINKS | _BENEATH)
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.syscall(_OPENAT2, folder_fd, os.fsencode(path), how, len(how))
    return kernel.check(result, path[:200])


def _has_attributes(folder_fd: int, other: Path) -> bool:
    """Return whether two folders have the same mode and owner."""
    one, two = os.fstat(folder_fd), os.stat(other)
    return (one.st_mode, one.st_uid, one.st_gid) == (two.st_mode, two.st_uid, two.st_gid)


def _list_merged(places: Sequence[Path]) -> list[Path]:
    """Return the folders of the layers that are seen together, from the top."""
    merged: list[Path] = []
    for place in places:
        if place.is_symlink() or not place.is_dir():
            break
        merged.append(place)
        if _is_opaque(place):
            break
    return merged


def _list_names(merged: Sequence[Path]) -> set[str]:
    """Return the names in folders that are seen together."""
    kinds: dict[str, bool] = {}
    for place in merged:
        with os.scandir(place) as entries:
            for entry in entries:
                kinds.setdefault(entry.name, _is_whiteout(entry.stat(follow_symlinks=False)))
    return {name for name, is_whiteout in kinds.items() if not is_whiteout}


def _is_whiteout(status: os.stat_result) -> bool:
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def _is_opaque(folder: int | Path) -> bool:
    try:
        return os.getxattr(folder, _OPAQUE) == b"y"
    except OSError:
        return False
