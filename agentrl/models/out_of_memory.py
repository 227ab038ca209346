"""Memory that a device or the host has not, told in the words of the config."""

import errno
import os
from collections.abc import Generator
from contextlib import contextmanager

import torch

from agentrl.errors import AgentrlError

_HOST = "DefaultCPUAllocator: "
"""Beginning of torch's errors where the host has no memory, after the place in its source."""
_PLAN = "agentrl plan CONFIG forecasts what fits."


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error says that a device or the host has no memory left."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    # Where a file cannot be mapped, the reason is the system's.
    reasons = (_HOST, os.strerror(errno.ENOMEM))
    return isinstance(error, RuntimeError) and any(reason in str(error) for reason in reasons)


@contextmanager
def explain_out_of_memory(kind: type[AgentrlError], subject: str, way_out: str) -> Generator[None]:
    """Raise `kind` where the block runs out of memory: what did, how much it asked for and how much
    was free, and what to change."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        # Torch's own sentences: how much was asked for, and how much is free of how much.
        sizes = str(error).removeprefix("CUDA out of memory. ").partition(" See documentation")[0]
        raise kind(f"{subject} ran out of GPU memory: {sizes.strip()} {way_out} {_PLAN}") from error
    except MemoryError as error:
        sizes = f": {error}" if str(error) else ""
        raise kind(f"{subject} ran out of the host's memory{sizes}. {way_out} {_PLAN}") from error
    except RuntimeError as error:
        _, is_host, sizes = str(error).partition(_HOST)
        if not is_host:
            raise
        sizes = sizes.partition("\n")[0].strip().removesuffix(".")
        raise kind(f"{subject} ran out of the host's memory: {sizes}. {way_out} {_PLAN}") from error
