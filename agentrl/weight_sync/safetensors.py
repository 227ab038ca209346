"""A state dict written as safetensors, one tensor after the other.

The bytes of the whole file never exist beside the weights: a model is in memory twice at most, as
it is and where it is written to.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

KINDS = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""Type names of the format, by the types that weights have."""


def drop_aliases(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights without names that share another one's storage, as a tied head does."""
    tensors: dict[str, Tensor] = {}
    storages: set[tuple[int, tuple[int, ...]]] = set()
    for name, tensor in weights.items():
        place = (tensor.data_ptr(), tuple(tensor.shape))
        if place not in storages or not tensor.numel():
            storages.add(place)
            tensors[name] = tensor
    return tensors


@dataclass(frozen=True, slots=True)
class TensorShape:
    """Shape and type of a tensor, before it is there."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Size in bytes."""
        return self.numel * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class SafetensorsLayout:
    """Layout of tensors in a file of safetensors, none of them shared."""

    header: bytes
    tensors: Mapping[str, TensorShape]
    starts: Mapping[str, int]
    """Start of each, in bytes from the beginning of the file."""
    size_bytes: int

    @classmethod
    def from_shapes(
        cls, tensors: Mapping[str, TensorShape], *, said: Mapping[str, str] | None = None
    ) -> "SafetensorsLayout":
        """Return the layout of tensors; `said` goes into the header.

        Raises `ValueError` for a type that no weight has.
        """
        # The widest first: then every tensor begins at a multiple of its own width.
        ordered = dict(sorted(tensors.items(), key=lambda item: -item[1].dtype.itemsize))
        header: dict[str, object] = {"__metadata__": dict(said)} if said else {}
        ends = [0]
        for name, tensor in ordered.items():
            if tensor.dtype not in KINDS:
                raise ValueError(
                    f"{name!r} has type {tensor.dtype}, which weights cannot have; convert it first"
                )
            ends.append(ends[-1] + tensor.size_bytes)
            header[name] = {
                "dtype": KINDS[tensor.dtype],
                "shape": list(tensor.shape),
                "data_offsets": ends[-2:],
            }
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        before = len(text).to_bytes(8, "little") + text
        starts = (len(before) + end for end in ends)
        return cls(
            before, ordered, dict(zip(ordered, starts, strict=False)), len(before) + ends[-1]
        )


def plan_safetensors(
    weights: Mapping[str, Tensor], *, said: Mapping[str, str] | None = None
) -> tuple[bytes, tuple[Tensor, ...]]:
    """Return the header of a file of safetensors, and the tensors in its order; nothing is copied.

    `said` goes into the header. What shares its storage is there once, under its first name.
    Raises `ValueError` for a type that no weight has.
    """
    tensors = drop_aliases(weights)
    layout = SafetensorsLayout.from_shapes(
        {n: TensorShape(tuple(t.shape), t.dtype) for n, t in tensors.items()}, said=said
    )
    return layout.header, tuple(tensors[name] for name in layout.tensors)


def bytes_of(tensor: Tensor) -> Tensor:
    """Return a tensor's bytes in order, where it is: a view, unless it lies there in another."""
    return tensor.detach().contiguous().flatten().view(torch.uint8)


def write_safetensors(
    file: BinaryIO, weights: Mapping[str, Tensor], *, said: Mapping[str, str] | None = None
) -> int:
    """Write the weights where the file stands, and return how many bytes that were.

    Takes and raises what `plan_safetensors` does.
    """
    header, tensors = plan_safetensors(weights, said=said)
    file.write(header)
    size = len(header)
    for tensor in tensors:
        raw = bytes_of(tensor.cpu())
        file.write(raw.numpy().data)
        size += len(raw)
    return size


def header_of(source: Path | bytes) -> dict[str, str]:
    """Return the entries `said` in a file of safetensors, or in the bytes of one. Empty for a
    folder and for what is no such file."""
    if isinstance(source, Path):
        try:
            with safe_open(source, framework="pt") as file:
                return file.metadata() or {}
        except (SafetensorError, OSError):
            return {}
    text = source[8 : 8 + int.from_bytes(source[:8], "little")]
    try:
        return json.loads(text).get("__metadata__", {})
    except (ValueError, AttributeError):
        return {}
