"""One writer per store. The lock is the kernel's: it ends with its process, also by `kill -9`."""

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from agentrl.errors import ConfigError
from agentrl.store.errors import machine_errors


class WriterLock:
    """Held from construction to `close`; raises `ConfigError` if another process holds it."""

    def __init__(self, file: Path) -> None:
        with machine_errors(file):
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(descriptor, 32, 0).decode(errors="replace") or "that is still starting"
            os.close(descriptor)
            raise ConfigError(
                f"{file.parent} is being written by process {owner}, and a store allows only one "
                "writer: stop that process, or open a StoreReader, which can read at the same time"
            ) from None
        # Who holds it is told where there is room for it; a full disk keeps nobody from resuming.
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        self._descriptor: int | None = descriptor

    def close(self) -> None:
        """Let others write. Idempotent."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            with suppress(OSError):
                os.ftruncate(descriptor, 0)
            os.close(descriptor)
