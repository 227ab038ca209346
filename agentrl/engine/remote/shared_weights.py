"""Weights that engines read where they are: in memory that processes of this machine share."""

import threading
from collections.abc import Mapping
from pathlib import Path
from weakref import WeakKeyDictionary

from torch import Tensor

from agentrl.engine.remote.client import RemoteEngine
from agentrl.engine.weights import Weights
from agentrl.sync.adapters import Base, adapted_in, packed
from agentrl.sync.memory import MemoryFile
from agentrl.sync.proof import Proof, Provable


class Shared:
    """File in memory, which goes with this object and whoever else has it."""

    def __init__(self, file: MemoryFile) -> None:
        self._file = file

    @property
    def path(self) -> Path:
        """Path of the file."""
        return self._file.path

    @property
    def size_bytes(self) -> int:
        """Size of the file, in bytes."""
        return self._file.size_bytes


class SharedBase(Shared):
    """A base of adapters."""

    def __init__(self, base: Base) -> None:
        """Take the base as `MemoryFile.of` does."""
        super().__init__(MemoryFile.of(base.weights))
        self.id = base.id


class SharedWeights(Shared):
    """A state dict; of one with adapters, the adapters alone, over `base`."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        """Copy the weights, unless they are in such memory already: see `MemoryFile.of`. A base is
        taken the first time, and stays as long as there is the `Base` or anything that was shared
        over it."""
        adapted = adapted_in(weights)
        tensors, said = (weights, {}) if adapted is None else packed(adapted)
        self.base = None if adapted is None else _shared_base(adapted.base)
        super().__init__(MemoryFile.of(tensors, said))
        self.proof: Proof | None = weights.proof if isinstance(weights, Provable) else None
        """Proof that engines with these weights are checked against."""


_BASES: WeakKeyDictionary[Base, SharedBase] = WeakKeyDictionary()
_LOCK = threading.Lock()


def _shared_base(base: Base) -> SharedBase:
    with _LOCK:
        if base not in _BASES:
            _BASES[base] = SharedBase(base)
        return _BASES[base]


def shared(weights: "Weights | SharedWeights") -> "Path | SharedWeights":
    """Return weights as something that has a path, copying a state dict that has none."""
    if isinstance(weights, SharedWeights):
        return weights
    if isinstance(weights, Mapping):
        return SharedWeights(weights)
    return Path(weights)


def missing_base(weights: Path | SharedWeights, engine: RemoteEngine) -> SharedBase | None:
    """Return the base to give an engine before it can take weights; None if it needs none."""
    base = weights.base if isinstance(weights, SharedWeights) else None
    return base if base is not None and base.id != engine.base else None


def path_of(weights: Path | SharedWeights) -> Path:
    """Return the path of weights."""
    return weights.path if isinstance(weights, SharedWeights) else weights
