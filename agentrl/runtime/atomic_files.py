"""Files and folders that are there whole or not at all, and errors of a disk that takes no more."""

import errno
import json
import os
import shutil
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from agentrl.errors import AgentrlError, ConfigError

_Kind = TypeVar("_Kind", dict[str, Any], list[Any])

_MAKE_ROOM = "Free space on the disk, or make its folder writable"
LEAST_FREE_BYTES = 2**20
"""A disk with less room cannot even take the files a run begins with."""
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG)
_ADVICE = {
    os.strerror(errno.EROFS): "Mount the disk writable",
    "readonly database": "Make its folder writable",
    os.strerror(errno.EIO): "Check the disk: the kernel's log says what failed",
    "disk I/O error": "Free space on the disk, or check it",
}


class DiskError(AgentrlError, RuntimeError):
    """The disk takes no more: it is full, read-only or broken."""


def check_folder(folder: Path, least_free_bytes: int = LEAST_FREE_BYTES) -> str:
    """Return the reason why a folder, made or not, cannot be written into, or an empty string."""
    folder = folder.absolute()
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir():
        return f"{there} is a file"
    disk = os.statvfs(there)
    if disk.f_flag & os.ST_RDONLY:
        return f"{there} is on a read-only file system"
    if not os.access(there, os.W_OK | os.X_OK):
        return f"this user has no write permission for {there}"
    free = disk.f_bavail * disk.f_frsize
    if free < least_free_bytes:
        return f"the disk of {there} is full: {free:,} bytes are free"
    return ""


def disk_advice(error: BaseException | str) -> str:
    """Return the way out of an error of the disk, without its full stop."""
    return next((advice for words, advice in _ADVICE.items() if words in str(error)), _MAKE_ROOM)


def write_text(path: Path, text: str) -> None:
    """Write a file so that a crash or a full disk leaves the old one, or none."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file as `write_text` does."""
    with replaced_file(path) as file:
        file.write(data)


@contextmanager
def replaced_file(path: Path) -> Generator[BinaryIO]:
    """Give a file to write that takes the place of `path` once the block ended well."""
    with _replacing(path) as partial, partial.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def lines_file(path: Path) -> Generator[Callable[[str], None]]:
    """Give what writes pieces of a text, which are the file once the block ended well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _replacing(path) as partial, partial.open("w", encoding="utf-8") as file:

        def write(piece: str) -> None:
            file.write(piece)

        yield write
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _replacing(path: Path) -> Generator[Path]:
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with name_disk_errors(path):
            yield partial
        partial.replace(path)
        sync_path(path.parent)
    except BaseException as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        if isinstance(error, OSError) and str(error.filename) == str(partial):
            error.filename = str(path)
        raise


@contextmanager
def name_disk_errors(path: Path) -> Generator[None]:
    """Put the file into the errors of a full or broken disk, which a write raises without it."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno in DISK_ERRORS:
            error.filename = str(path)
        raise


def write_json(path: Path, value: Mapping[str, Any] | Sequence[Any]) -> None:
    """Write a JSON file as `write_text` does; raises `ValueError` for NaN, which JSON lacks."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def load_json(
    path: Path, kind: type[_Kind], *, advice: str, error: type[AgentrlError] = ConfigError
) -> _Kind:
    """Read a file of `write_json`; else raise `error`, whose way out is `advice`."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(value, kind):
            raise TypeError(f"it holds {value!r:.40}, expected a {kind.__name__}")
    except (OSError, ValueError, TypeError, RecursionError) as cause:
        raise error(f"{path} is damaged: {cause}; {advice}") from cause
    return value


@contextmanager
def new_folder(path: Path) -> Generator[Path]:
    """Give a folder that becomes `path`, whole and on the disk, once the block ended well."""
    partial = path.with_name(f".{path.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        yield partial
        apply_umask(partial)
        sync_folder(partial)
        partial.rename(path)
        sync_path(path.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def apply_umask(folder: Path) -> None:
    """Give the files of a folder the rights that this process gives to new ones.

    safetensors 0.8 writes for the owner alone, and a server may be another user.
    """
    status = Path("/proc/self/status").read_text()
    (umask,) = (line.split()[1] for line in status.splitlines() if line.startswith("Umask:"))
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(0o666 & ~int(umask, 8))


def sync_folder(folder: Path) -> None:
    """Bring a folder and everything in it to the disk."""
    for path in folder.rglob("*"):
        sync_path(path)
    sync_path(folder)


@contextmanager
def first_disk_error(folder: Path) -> Generator[None]:
    """Raise the first error of the disk in the block, whatever else broke over it.

    What is closed after it fails too, and its error would stand before the one that matters. An
    error that no `AgentrlError` tells of becomes a `DiskError`; `folder` is that of the run.
    """
    try:
        yield
    except Exception as error:
        chain = [error, *_errors_before(error)]
        indices = [place for place, one in enumerate(chain) if _is_of_disk(one)]
        if not indices:
            raise
        first = indices[-1]
        disk_error = chain[first]
        while first > 0 and chain[first - 1].__cause__ is chain[first]:
            first -= 1
            disk_error = chain[first] if isinstance(chain[first], AgentrlError) else disk_error
        if disk_error is error and isinstance(error, AgentrlError):
            raise
        if isinstance(disk_error, AgentrlError):
            raise disk_error from disk_error.__cause__
        place = getattr(disk_error, "filename", None) or folder
        text = getattr(disk_error, "strerror", None) or str(disk_error)
        raise DiskError(
            f"{place} could not be written: {text}; no recorded data of the run is lost. "
            f"{disk_advice(disk_error)}, and resume the run (--resume)"
        ) from disk_error


def _errors_before(error: BaseException) -> Generator[BaseException]:
    """Yield what an error came of, and what was being handled when it was raised, back in time."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield inner
            yield from _errors_before(inner)
    before = error.__cause__
    if before is None and not error.__suppress_context__:
        before = error.__context__
    if before is not None:
        yield before
        yield from _errors_before(before)


def _is_of_disk(error: BaseException) -> bool:
    """Return whether an error is of a disk that takes no more, also one of a library's own."""
    if isinstance(error, OSError):
        return error.errno in DISK_ERRORS
    return any(os.strerror(code) in str(error) for code in DISK_ERRORS)


def sync_path(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
