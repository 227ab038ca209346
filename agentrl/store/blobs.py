"""Files named by the SHA-256 of their content: images and tool schemas, each stored once."""

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from agentrl.store.errors import DamagedStore, machine_errors


class BlobStore:
    """The `objects/` folder of a store."""

    def __init__(
        self, folder: Path, *, written: Callable[[Path], None] = lambda path: None
    ) -> None:
        """`written` hears of every file and folder that has to reach the disk."""
        self.folder = folder
        self._written = written
        self._known: set[str] = set()

    def put(self, data: bytes) -> str:
        """Store `data` unless it is there, whole or not at all, and return its digest."""
        digest = hashlib.sha256(data).hexdigest()
        if digest in self._known:
            return digest
        file = self.file(digest)
        with machine_errors(file):
            # A file cut short by a power failure, or changed by the disk, is written again.
            if not file.is_file() or file.read_bytes() != data:
                file.parent.mkdir(parents=True, exist_ok=True)
                partial = file.with_name(f".{digest}.{os.getpid()}.partial")
                try:
                    partial.write_bytes(data)
                    partial.replace(file)
                except BaseException:
                    with suppress(OSError):
                        partial.unlink(missing_ok=True)
                    raise
            for path in (file, file.parent, self.folder):
                self._written(path)
        self._known.add(digest)
        return digest

    def get(self, digest: str) -> bytes:
        """Return the stored bytes; raises `DamagedStore` if they are missing or changed."""
        file = self.file(digest)
        if not file.is_file():
            raise _build_error(f"{file} is missing")
        with machine_errors(file):
            data = file.read_bytes()
        if (actual_digest := hashlib.sha256(data).hexdigest()) != digest:
            raise _build_error(
                f"{file} is damaged: its {len(data)} bytes have the SHA-256 {actual_digest}"
            )
        return data

    def file(self, digest: str) -> Path:
        """Return the path of an object."""
        return self.folder / digest[:2] / digest

    def clean(self) -> None:
        """Remove what a killed writer left half written."""
        with machine_errors(self.folder):
            for partial in self.folder.glob("*/.*.partial"):
                partial.unlink(missing_ok=True)


def _build_error(damage: str) -> DamagedStore:
    return DamagedStore(
        f"{damage}; restore it from a copy, or resume before the record that names it with agentrl "
        "train --resume --cut-damaged",
        damage=damage,
    )
