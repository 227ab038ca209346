"""Weights in memory that processes of one machine share: nothing is left when all have ended."""

import os
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from weakref import WeakKeyDictionary

from torch import Tensor

from agentrl.engine.remote.client import RemoteEngine
from agentrl.engine.weights import Weights
from agentrl.sync.adapters import Base, adapted_in, packed
from agentrl.sync.proof import Proof, Provable
from agentrl.sync.stream import write_safetensors


class MemoryFile:
    """A file of safetensors that has no name on any disk, and goes with this object."""

    def __init__(self) -> None:
        """Make an empty one."""
        self.descriptor = os.memfd_create("agentrl-weights", os.MFD_CLOEXEC)
        weakref.finalize(self, os.close, self.descriptor)
        self.path = Path(f"/proc/{os.getpid()}/fd/{self.descriptor}")
        """Where processes of the same user find it, while this object lives."""
        self.size_bytes = 0

    def write(self, weights: Mapping[str, Tensor], said: Mapping[str, str] | None = None) -> None:
        """Write weights into it, while it is empty; see `write_safetensors`."""
        with os.fdopen(self.descriptor, "wb", closefd=False) as file:
            self.size_bytes = write_safetensors(file, weights, said=said)


class SharedBase(MemoryFile):
    """A base of adapters."""

    def __init__(self, base: Base) -> None:
        """Copy the base; the copy goes with this object."""
        super().__init__()
        self.id = base.id
        self.write(base.weights)


class SharedWeights(MemoryFile):
    """A state dict; of one with adapters, the adapters alone, over `base`."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        """Copy the weights; the copy goes with this object. A base is copied the first time, and
        stays as long as there is the `Base` or anything that was shared over it."""
        super().__init__()
        adapted = adapted_in(weights)
        tensors, said = (weights, {}) if adapted is None else packed(adapted)
        self.base = None if adapted is None else _shared_base(adapted.base)
        self.write(tensors, said)
        self.proof: Proof | None = weights.proof if isinstance(weights, Provable) else None
        """What who has taken them is asked."""


_BASES: WeakKeyDictionary[Base, SharedBase] = WeakKeyDictionary()
_LOCK = threading.Lock()


def _shared_base(base: Base) -> SharedBase:
    with _LOCK:
        if base not in _BASES:
            _BASES[base] = SharedBase(base)
        return _BASES[base]


def shared(weights: "Weights | SharedWeights") -> "Path | SharedWeights":
    """Return weights as something that has a path, copying a state dict."""
    if isinstance(weights, SharedWeights):
        return weights
    if isinstance(weights, Mapping):
        return SharedWeights(weights)
    return Path(weights)


def missing_base(weights: Path | SharedWeights, engine: RemoteEngine) -> SharedBase | None:
    """Return what an engine has to be given before it can take weights; None if nothing."""
    base = weights.base if isinstance(weights, SharedWeights) else None
    return base if base is not None and base.id != engine.base else None


def path_of(weights: Path | SharedWeights) -> Path:
    """Return where weights are."""
    return weights.path if isinstance(weights, SharedWeights) else weights
