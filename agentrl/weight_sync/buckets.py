"""Weights as one row of bytes, cut into buckets that know nothing of where a tensor ends."""

import mmap
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor

from agentrl.weight_sync.adapters import find_adapters, pack_adapters
from agentrl.weight_sync.safetensors import bytes_of, plan_safetensors


class SafetensorsBytes:
    """The bytes of a file of safetensors, wherever they are."""

    def __init__(self, parts: Sequence[Tensor]) -> None:
        """Take rows of bytes (uint8, one dimension), on any device; they are not copied."""
        self._parts = tuple(part for part in parts if len(part))
        self._ends = tuple(accumulate(len(part) for part in self._parts))
        self.size_bytes = self._ends[-1] if self._ends else 0

    @classmethod
    def from_weights(cls, weights: Mapping[str, Tensor]) -> "SafetensorsBytes":
        """Return the bytes of a state dict as a file; of one with adapters, those alone.

        Raises `ValueError` as `plan_safetensors` does.
        """
        adapted = find_adapters(weights)
        tensors, metadata = (weights, {}) if adapted is None else pack_adapters(adapted)
        header, ordered = plan_safetensors(tensors, said=metadata)
        head = torch.frombuffer(bytearray(header), dtype=torch.uint8)
        return cls([head, *map(bytes_of, ordered)])

    @classmethod
    def from_file(cls, path: Path) -> "SafetensorsBytes":
        """Return the bytes of a file, which is mapped and not read."""
        with path.open("rb") as file:
            # A private copy of what is written, which is nothing: torch wants to be able to write.
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        return cls([torch.frombuffer(mapped, dtype=torch.uint8)])

    def copy_to(self, target: Tensor, *, start: int) -> None:
        """Copy as many bytes as `target` has, from place `start` on, to where it is."""
        index, offset = bisect_right(self._ends, start), 0
        while offset < len(target):
            part = self._parts[index]
            begin = start + offset - (self._ends[index] - len(part))
            piece = part[begin : begin + len(target) - offset]
            target[offset : offset + len(piece)].copy_(piece)
            offset += len(piece)
            index += 1


def buckets(size_bytes: int, bucket_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield where buckets begin and end; the last one may be smaller."""
    for start in range(0, size_bytes, bucket_bytes):
        yield start, min(start + bucket_bytes, size_bytes)
