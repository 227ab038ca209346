"""Content of a folder and of an archive: a digest, equal wherever a folder lies; a file's bytes."""

import hashlib
import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

from agentrl.errors import ConfigError

_CHUNK_BYTES = 2**20


def compute_digest(folder: str | os.PathLike[str]) -> str:
    """Return 64 hex digits of the names, modes and contents of everything in a folder."""
    digest = hashlib.sha256()
    for path in walk_files(Path(folder)):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            content, kind = io.BytesIO(os.fsencode(os.readlink(path))), "link"
        elif path.is_dir():
            content, kind = io.BytesIO(), "directory"
        else:
            content, kind = path.open("rb"), "program" if os.access(path, os.X_OK) else "file"
        with content:
            size = content.seek(0, os.SEEK_END)
            content.seek(0)
            digest.update(f"{kind}\0{name}\0{size}\0".encode())
            while chunk := content.read(_CHUNK_BYTES):
                digest.update(chunk)
    return digest.hexdigest()


def walk_files(folder: Path) -> Iterator[Path]:
    """Yield everything in a folder, sorted; links are not followed.

    Raises `ConfigError` for a pipe, a socket or a device, which has no content of its own, and for
    a name that is no text.
    """
    for path in sorted(folder.iterdir()):
        if any("\udc80" <= character <= "\udcff" for character in path.name):
            raise ConfigError(f"{str(path)!a} has a name that is not UTF-8; rename it")
        if not (path.is_symlink() or path.is_dir() or path.is_file()):
            raise ConfigError(f"{path} is neither a file nor a folder nor a link; remove it")
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from walk_files(path)


def read_file(archive: bytes) -> bytes | None:
    """Return the content of an archive's only file; None where its first member is none."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        member = opened.next()
        if member is None or not member.isreg():
            return None
        content = opened.extractfile(member)
        return None if content is None else content.read()
