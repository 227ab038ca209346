"""Weights that engines read where they are: in memory that processes of this machine share."""

import threading
from collections.abc import Mapping
from pathlib import Path
from weakref import WeakKeyDictionary

from torch import Tensor

from agentrl.engine.remote.client import RemoteEngine
from agentrl.engine.weights import Weights
from agentrl.weight_sync.adapters import BaseWeights, find_adapters, pack_adapters
from agentrl.weight_sync.check import CheckedWeights, WeightCheck
from agentrl.weight_sync.shared_memory import SharedMemoryFile


class SharedWeightFile:
    """File in memory, which goes with this object and whoever else has it."""

    def __init__(self, file: SharedMemoryFile, id: str = "") -> None:
        self._file = file
        self.path = file.path
        self.size_bytes = file.size_bytes
        self.id = id


class SharedWeights(SharedWeightFile):
    """A state dict; of one with adapters, the adapters alone, over `base`."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        """Copy the weights, unless they are in such memory already, as `SharedMemoryFile` does.
        A base is taken the first time, and stays as long as there is the `BaseWeights` or anything
        that was shared over it."""
        adapted = find_adapters(weights)
        tensors, metadata = (weights, {}) if adapted is None else pack_adapters(adapted)
        self.base = None if adapted is None else _share_base(adapted.base)
        super().__init__(SharedMemoryFile.from_weights(tensors, metadata))
        self.proof: WeightCheck | None = (
            weights.proof if isinstance(weights, CheckedWeights) else None
        )
        """Proof that engines with these weights are checked against."""


_BASES: WeakKeyDictionary[BaseWeights, SharedWeightFile] = WeakKeyDictionary()
_LOCK = threading.Lock()


def _share_base(base: BaseWeights) -> SharedWeightFile:
    with _LOCK:
        if base not in _BASES:
            _BASES[base] = SharedWeightFile(SharedMemoryFile.from_weights(base.weights), base.id)
        return _BASES[base]


def share_weights(weights: "Weights | SharedWeights") -> "Path | SharedWeights":
    """Return weights as something that has a path, copying a state dict that has none."""
    if isinstance(weights, SharedWeights):
        return weights
    if isinstance(weights, Mapping):
        return SharedWeights(weights)
    return Path(weights)


def find_missing_base(
    weights: Path | SharedWeights, engine: RemoteEngine
) -> SharedWeightFile | None:
    """Return the base to give an engine before it can take weights; None if it needs none."""
    base = weights.base if isinstance(weights, SharedWeights) else None
    return base if base is not None and base.id != engine.base else None


def path_of(weights: Path | SharedWeights) -> Path:
    """Return the path of weights."""
    return weights.path if isinstance(weights, SharedWeights) else weights
