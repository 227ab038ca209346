"""Child processes: their end, and the end of what they wrote."""

import asyncio
import contextlib
import os
from typing import IO

LOG_BYTES = 4_000
"""Bytes of a process's output that are shown when it fails."""


async def stop(process: asyncio.subprocess.Process, *, within_s: float) -> bool:
    """Wait for the end of a process that was told, then kill it; return whether it ended first."""
    try:
        async with asyncio.timeout(within_s):
            await process.wait()
            return True
    except TimeoutError:
        await asyncio.sleep(0)  # late ourselves, we may have the end and the time in one turn
        if process.returncode is not None:
            return True
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        return False


def tail(log: IO[bytes], limit_bytes: int = LOG_BYTES) -> str:
    """Return the end of what was written into a log."""
    size = log.seek(0, os.SEEK_END)
    log.seek(max(0, size - limit_bytes))
    return log.read().decode(errors="replace").strip() or "nothing"
