"""Files of a session, handled by the keeper, which trusts nothing it finds there.

Every component of a path is opened on its own and no link is followed, so a link planted by the
code leads nowhere.
"""

import errno
import fcntl
import heapq
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
DEPTH_MAX = 256
"""Directories one below the other; each takes an open descriptor while they are walked."""
ENTRIES_PAGE = 2048
"""Of a directory at once: with names that JSON escapes byte for byte they fit into one frame."""
_FAULTS = frozenset(
    (errno.EIO, errno.EROFS, errno.ESTALE, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
)
"""Numbers of errors that are the machine's, whatever the code wrote."""
_NO_SPACE = frozenset((errno.ENOSPC, errno.EDQUOT))
_FICLONE = 0x40049409
_PIECE_BYTES = 2**30


def serve(
    root: str, body: Mapping[str, Any], blob: bytes, *, limit_bytes: int, is_bare: bool
) -> tuple[dict[str, Any], bytes]:
    """Do what the host asks: write or read a file, list a page of a directory. Return the answer.

    `limit_bytes` bounds a file. An `OSError` is an answer, too; one that is the machine's is told
    apart. Where the directory is a bare one, that includes a disk without space: elsewhere it is
    the session's limit.
    """
    path, answer, data = body["path"], dict[str, Any](), b""
    try:
        if body["op"] == "write":
            write(root, path, blob, limit_bytes=limit_bytes)
        elif body["op"] == "read":
            data = read(root, path, limit_bytes=limit_bytes)
        else:
            answer["entries"] = list_entries(root, path, after=body["after"])
    except OSError as error:
        if error.errno in (_FAULTS | _NO_SPACE if is_bare else _FAULTS):
            return {"fault": str(error)}, b""
        kinds = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
        kind = next((k.__name__ for k in kinds if isinstance(error, k)), "OSError")
        answer = {"os_error": kind, "text": str(error)}
    return answer, data


def explain_excess(root: str, limit_bytes: int) -> str | None:
    """Return why a bare directory holds too much, where no file system keeps the limit."""
    try:
        used_bytes = count_bytes(root)
    except OSError as error:
        return f"the size of the directory cannot be determined: {error}"
    if used_bytes <= limit_bytes:
        return None
    return f"the directory holds {used_bytes} bytes, which exceeds the limit of {limit_bytes}"


def _split_path(path: str) -> list[str]:
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if path.startswith("/") or ".." in parts or not parts or not _can_be_named(path):
        raise PermissionError(
            f"{path!r} is not a path below the session directory; give a relative path without .."
        )
    if len(parts) > DEPTH_MAX:
        raise OSError(f"{path[:100]!r}... is nested deeper than {DEPTH_MAX} directories")
    return parts


def _can_be_named(path: str) -> bool:
    try:
        return b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:  # half of a surrogate pair that stands for no byte
        return False


def _open_below(root: str, path: str, flags: int, *, make: bool = False) -> int:
    """Open `path` below `root`; with `make` the directories above it are made."""
    *above, name = _split_path(path)
    here = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in above:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(part, 0o755, dir_fd=here)
            below = _open(part, _DIRECTORY, here, path)
            os.close(here)
            here = below
        return _open(name, flags, here, path)
    finally:
        os.close(here)


def _open(name: str, flags: int, directory: int, path: str) -> int:
    if _is_link(name, directory):
        raise PermissionError(f"{path!r} goes through a link, but links are not followed")
    return os.open(name, flags, 0o644, dir_fd=directory)


def _is_link(name: str, directory: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def _check_regular(fd: int, path: str) -> int:
    """Return the size of an open file; `OSError` unless it is a regular one."""
    state = os.fstat(fd)
    if not stat.S_ISREG(state.st_mode):
        raise OSError(f"{path!r} is not a regular file")
    return state.st_size


def write(root: str, path: str, data: bytes, *, limit_bytes: int) -> None:
    """Write a file below `root`, making its parents."""
    if len(data) > limit_bytes:
        raise OSError(
            f"{path!r} has {len(data)} bytes, which exceeds sandbox.limits.file_bytes={limit_bytes}"
        )
    fd = _open_below(root, path, os.O_WRONLY | os.O_CREAT | _FILE, make=True)
    with open(fd, "wb") as file:
        _check_regular(fd, path)
        os.ftruncate(fd, 0)
        file.write(data)


def read(root: str, path: str, *, limit_bytes: int) -> bytes:
    """Return a regular file below `root`."""
    with open(_open_below(root, path, os.O_RDONLY | _FILE), "rb") as file:
        size_bytes = _check_regular(file.fileno(), path)
        data = file.read(limit_bytes + 1)
        if len(data) > limit_bytes:
            raise OSError(
                f"{path!r} has {size_bytes} bytes, which exceeds "
                f"sandbox.limits.file_bytes={limit_bytes}"
            )
        return data


def list_entries(root: str, path: str, *, after: str = "") -> list[tuple[str, str, int]]:
    """Return name, kind and size of what a directory below `root` holds, by name.

    One page of it: the first `ENTRIES_PAGE` names after `after`. A shorter page is the last.
    """
    if path in ("", "."):
        directory = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    else:
        directory = _open_below(root, path, _DIRECTORY)
    try:
        names = (name for name in os.listdir(directory) if name > after)
        return [_describe_entry(name, directory) for name in heapq.nsmallest(ENTRIES_PAGE, names)]
    finally:
        os.close(directory)


def _describe_entry(name: str, directory: int) -> tuple[str, str, int]:
    try:
        state = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:  # gone since; it counts, so that a page that is short is the last
        return name, "other", 0
    if stat.S_ISREG(state.st_mode):
        return name, "file", state.st_size
    if stat.S_ISDIR(state.st_mode):
        return name, "directory", 0
    return name, "link" if stat.S_ISLNK(state.st_mode) else "other", 0


def copy_tree(source: str, target: str) -> None:
    """Copy directories, regular files and links (as links); skip everything else.

    `OSError` for directories nested deeper than `DEPTH_MAX`.
    """
    here, there = (os.open(path, _DIRECTORY & ~os.O_NOFOLLOW) for path in (source, target))
    try:
        _copy_entries(here, there, DEPTH_MAX)
    finally:
        os.close(here)
        os.close(there)


def _copy_entries(source: int, target: int, depth: int) -> None:
    if depth < 0:
        raise OSError(f"directories are nested deeper than {DEPTH_MAX}")
    with os.scandir(source) as entries:
        for entry in entries:
            name = entry.name
            if entry.is_symlink():
                os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
            elif entry.is_dir(follow_symlinks=False):
                _copy_directory(name, source, target, depth)
            elif entry.is_file(follow_symlinks=False):
                _copy_file(name, source, target)


def _copy_directory(name: str, source: int, target: int, depth: int) -> None:
    below = os.open(name, _DIRECTORY, dir_fd=source)
    try:
        os.mkdir(name, 0o700, dir_fd=target)
        copy = os.open(name, _DIRECTORY, dir_fd=target)
        try:
            _copy_entries(below, copy, depth - 1)
            _copy_state(below, copy)
        finally:
            os.close(copy)
    finally:
        os.close(below)


def _copy_file(name: str, source: int, target: int) -> None:
    with open(os.open(name, os.O_RDONLY | _FILE, dir_fd=source), "rb") as data:
        if not stat.S_ISREG(os.fstat(data.fileno()).st_mode):
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE
        with open(os.open(name, flags, 0o600, dir_fd=target), "wb") as copy:
            _copy_data(data.fileno(), copy.fileno())
            _copy_state(data.fileno(), copy.fileno())


def _copy_data(source: int, target: int) -> None:
    """Share the blocks where the file system can, and copy them in the kernel where it cannot."""
    with suppress(OSError):
        fcntl.ioctl(target, _FICLONE, source)
        return
    while os.sendfile(target, source, None, _PIECE_BYTES):
        continue


def _copy_state(source: int, target: int) -> None:
    state = os.fstat(source)
    os.fchmod(target, stat.S_IMODE(state.st_mode) & ~(stat.S_ISUID | stat.S_ISGID))
    os.utime(target, ns=(state.st_atime_ns, state.st_mtime_ns))


def count_bytes(root: str) -> int:
    """Return the bytes of the regular files below `root`; `OSError` as for `copy_tree`."""
    here = os.open(root, _DIRECTORY & ~os.O_NOFOLLOW)
    try:
        return _sum_bytes(here, DEPTH_MAX)
    finally:
        os.close(here)


def _sum_bytes(directory: int, depth: int) -> int:
    if depth < 0:
        raise OSError(f"directories are nested deeper than {DEPTH_MAX}")
    total = 0
    with os.scandir(directory) as entries:
        for entry in entries:
            try:
                if entry.is_dir(follow_symlinks=False):
                    below = os.open(entry.name, _DIRECTORY, dir_fd=directory)
                    try:
                        total += _sum_bytes(below, depth - 1)
                    finally:
                        os.close(below)
                else:
                    total += entry.stat(follow_symlinks=False).st_size
            except FileNotFoundError:
                continue
    return total


def remove_tree(root: str) -> None:
    """Delete a directory, whatever the code made of it; a link in its place is only unlinked.

    Nothing is done by path below the root, and nothing recurses: what is nested is first moved up.
    """
    above, name = os.path.split(os.path.abspath(root))
    parent = os.open(above, _DIRECTORY & ~os.O_NOFOLLOW)
    try:
        if (here := enter_directory(name, parent)) is None:
            os.unlink(name, dir_fd=parent)
            return
        try:
            while names := os.listdir(here):
                for below in names:
                    take_apart(below, here)
        finally:
            os.close(here)
        os.rmdir(name, dir_fd=parent)
    finally:
        os.close(parent)


def enter_directory(name: str, parent: int | None = None) -> int | None:
    """Open a directory for good, also one whose permissions say no; None for anything else."""
    handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        if not stat.S_ISDIR(os.fstat(handle).st_mode):
            return None
        os.chmod(f"/proc/self/fd/{handle}", 0o700)
        return os.open(f"/proc/self/fd/{handle}/.", _DIRECTORY)
    finally:
        os.close(handle)


def take_apart(name: str, root: int) -> None:
    """Delete an entry of a directory, after the directories in it are moved up to the root."""
    if (directory := enter_directory(name, root)) is None:
        os.unlink(name, dir_fd=root)
        return
    try:
        for below in os.listdir(directory):
            if (deeper := enter_directory(below, directory)) is None:
                os.unlink(below, dir_fd=directory)
                continue
            os.close(deeper)
            os.rename(below, os.urandom(16).hex(), src_dir_fd=directory, dst_dir_fd=root)
    finally:
        os.close(directory)
    os.rmdir(name, dir_fd=root)
