"""Files in memory that processes of one machine share: nothing is left when all have ended."""

import mmap
import os
import weakref
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from agentrl.weight_sync.check import CheckedWeights
from agentrl.weight_sync.safetensors import SafetensorsLayout, write_safetensors


class SharedMemoryFile:
    """A file, of safetensors for example, that has no name on any disk, and goes with this object
    and whoever has mapped it."""

    def __init__(self, name: str = "agentrl-weights") -> None:
        """Make an empty one. The name is what the system shows of it."""
        self.descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
        weakref.finalize(self, os.close, self.descriptor)
        self.path = Path(f"/proc/{os.getpid()}/fd/{self.descriptor}")
        """Path at which processes of the same user find it, while this object lives."""

    @property
    def size_bytes(self) -> int:
        """Number of bytes written."""
        return os.fstat(self.descriptor).st_size

    @classmethod
    def from_weights(
        cls, weights: Mapping[str, Tensor], said: Mapping[str, str] | None = None
    ) -> "SharedMemoryFile":
        """Return a file with these weights: their own, where they lie in one, else a copy; see
        `write_safetensors`."""
        if isinstance(weights, CheckedWeights):
            weights = weights.weights
        if isinstance(weights, SharedMemoryWeights) and not said:
            return weights.file
        shared_file = cls()
        with os.fdopen(shared_file.descriptor, "wb", closefd=False) as file:
            write_safetensors(file, weights, said=said)
        return shared_file

    def append(self, parts: Iterable[memoryview]) -> None:
        """Write bytes behind what was appended before.

        Raises `OSError` where there is no memory left, as `put` does.
        """
        with os.fdopen(self.descriptor, "ab", closefd=False) as file:
            for part in parts:
                file.write(part)

    def put(self, data: Tensor, *, start: int) -> None:
        """Write bytes (uint8, one dimension, on the CPU) at a place.

        Raises `OSError` where there is no memory left; to write through a mapping would end the
        process then.
        """
        view = data.numpy().data
        while view:
            count = os.pwrite(self.descriptor, view, start)
            view, start = view[count:], start + count


class SharedMemoryWeights(Mapping[str, Tensor]):
    """A state dict whose tensors lie in a memory file: whoever wants the file gets that one.

    Nobody may change them.
    """

    def __init__(
        self, file: SharedMemoryFile, layout: SafetensorsLayout, *, tied: Mapping[str, str]
    ) -> None:
        """Take a file that is written as the layout says. `tied` names are those of others' tensors
        too."""
        self.file = file
        mapped = mmap.mmap(file.descriptor, layout.size_bytes)
        # Each with a storage of its own, for those who look for tensors that share theirs.
        self._tensors = {
            name: torch.frombuffer(
                mapped, dtype=each.dtype, count=each.numel, offset=layout.starts[name]
            ).view(each.shape)
            if each.numel
            else torch.empty(each.shape, dtype=each.dtype)
            for name, each in layout.tensors.items()
        }
        self._tensors |= {name: self._tensors[first] for name, first in tied.items()}

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)
