"""Weights in memory that processes of one machine share: nothing is left when all have ended."""

import os
import weakref
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from agentrl.engine.weights import Weights
from agentrl.sync.proof import Proof, Provable
from agentrl.sync.stream import write_safetensors


class SharedWeights:
    """A state dict as a file of safetensors that has no name on any disk."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        """Copy the weights; the copy goes with this object."""
        descriptor = os.memfd_create("agentrl-weights", os.MFD_CLOEXEC)
        weakref.finalize(self, os.close, descriptor)
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            write_safetensors(file, weights)
        self.path = Path(f"/proc/{os.getpid()}/fd/{descriptor}")
        """Where processes of the same user find it, while this object lives."""
        self.proof: Proof | None = weights.proof if isinstance(weights, Provable) else None
        """What who has taken them is asked."""


def shared(weights: "Weights | SharedWeights") -> "Path | SharedWeights":
    """Return weights as something that has a path, copying a state dict."""
    if isinstance(weights, SharedWeights):
        return weights
    if isinstance(weights, Mapping):
        return SharedWeights(weights)
    return Path(weights)


def path_of(weights: Path | SharedWeights) -> Path:
    """Return where weights are."""
    return weights.path if isinstance(weights, SharedWeights) else weights
