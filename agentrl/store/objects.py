"""Files named by the SHA-256 of their content: images and tool schemas, each stored once."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from agentrl.store.damage import DamagedStore


class Objects:
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
        # A file cut short by a power failure is written again.
        if not file.is_file() or file.stat().st_size != len(data):
            file.parent.mkdir(parents=True, exist_ok=True)
            partial = file.with_name(f".{digest}.{os.getpid()}.partial")
            try:
                partial.write_bytes(data)
                partial.replace(file)
            except BaseException:
                partial.unlink(missing_ok=True)
                raise
            for path in (file, file.parent, self.folder):
                self._written(path)
        self._known.add(digest)
        return digest

    def get(self, digest: str) -> bytes:
        """Return what was stored; raises `DamagedStore` if it is missing or changed."""
        file = self.file(digest)
        try:
            data = file.read_bytes()
        except FileNotFoundError:
            raise DamagedStore(f"{file} is missing; bring it back from a copy") from None
        if (found := hashlib.sha256(data).hexdigest()) != digest:
            raise DamagedStore(
                f"{file} is damaged: its {len(data)} bytes have the SHA-256 {found}; bring it back "
                "from a copy"
            )
        return data

    def file(self, digest: str) -> Path:
        """Return where an object lies."""
        return self.folder / digest[:2] / digest

    def clean(self) -> None:
        """Remove what a killed writer left half written."""
        for partial in self.folder.glob("*/.*.partial"):
            partial.unlink(missing_ok=True)
