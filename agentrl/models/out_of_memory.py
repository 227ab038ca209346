"""A device that runs out of memory, told in the words of the config."""

from collections.abc import Generator
from contextlib import contextmanager

import torch

from agentrl.errors import AgentrlError


@contextmanager
def explain_out_of_memory(kind: type[AgentrlError], subject: str, way_out: str) -> Generator[None]:
    """Raise `kind` where the block runs out of a device's memory: what did, and what to change."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        # Torch's own sentences: how much was asked for, and how much is free.
        sizes = str(error).removeprefix("CUDA out of memory. ").partition(" See documentation")[0]
        raise kind(f"{subject} ran out of GPU memory: {sizes.strip()} {way_out}") from error
