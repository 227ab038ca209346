"""Content of a folder and of an archive: a digest, equal wherever a folder lies; a file's bytes."""

import hashlib
import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

from agentrl.errors import ConfigError


def compute_digest(folder: str | os.PathLike[str]) -> str:
    """Return 64 hex digits of the names, modes and contents of everything in a folder."""
    digest = hashlib.sha256()
    for path in walk_files(Path(folder)):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            content, kind = os.readlink(path).encode(), "link"
        elif path.is_dir():
            content, kind = b"", "directory"
        else:
            content, kind = path.read_bytes(), "program" if os.access(path, os.X_OK) else "file"
        digest.update(f"{kind}\0{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def walk_files(folder: Path) -> Iterator[Path]:
    """Yield everything in a folder, sorted; links are not followed.

    Raises `ConfigError` for a pipe, a socket or a device, which has no content of its own.
    """
    for path in sorted(folder.iterdir()):
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
