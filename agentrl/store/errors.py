"""Errors of a store. The message names the file, the place and the way out."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from agentrl.errors import AgentrlError
from agentrl.runtime.atomic_files import disk_advice


class StoreError(AgentrlError, RuntimeError):
    """The store cannot be used as asked: it cannot be written, or what is asked contradicts it."""


class DamagedStore(StoreError):
    """Bytes on disk are not what was written, or are missing."""

    def __init__(self, text: str, *, damage: str | None = None) -> None:
        super().__init__(text)
        self.damage = damage or text
        """The damage without the way out."""


def build_segment_error(file: Path, offset: int, what: str) -> DamagedStore:
    """Return the error for a segment that is wrong at `offset`, with what to do about it."""
    damage = f"{file} is damaged at byte {offset}: {what}"
    return DamagedStore(
        f"{damage}. Restore the file from a copy, or resume before the damage with agentrl train "
        "--resume --cut-damaged: that moves the log from this point on aside. A checkpoint that "
        "builds on that part is rejected, so remove it to resume from the one before",
        damage=damage,
    )


@contextmanager
def machine_errors(path: Path) -> Generator[None]:
    """Turn an error of the machine (a full or read-only disk) into a `StoreError` that names it."""
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"{error.filename or path} cannot be used: {error.strerror or error}; no recorded data "
            f"is lost. {disk_advice(error)}, and resume the run"
        ) from error
