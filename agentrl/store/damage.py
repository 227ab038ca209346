"""What can be wrong with a store. The message names the file, the place and the way out."""

from pathlib import Path

from agentrl.errors import AgentrlError


class StoreError(AgentrlError, RuntimeError):
    """The store cannot be used as asked: it cannot be written, or what is asked contradicts it."""


class DamagedStore(StoreError):
    """Bytes on disk are not what was written, or are missing."""


def damaged_segment(file: Path, offset: int, what: str) -> DamagedStore:
    """Return the error for a segment that is wrong at `offset`, with what to do about it."""
    return DamagedStore(
        f"{file} is damaged at byte {offset}: {what}. Bring the file back from a copy, or go on "
        "from what lies before it with agentrl train --resume --cut-damaged: that moves the log "
        "from here on aside, and a checkpoint that builds on that part is refused, so remove it "
        "to resume from the one before"
    )
