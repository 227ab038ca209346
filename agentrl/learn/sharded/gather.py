"""Weights in shards, put together in memory that engines read: no process holds them beside that.

Every rank knows the shape of everything, so that where each row lies in the file is known before
anything is sent. Rows go to the first rank in buckets, and from there to their places.
"""

from collections.abc import Iterator, Mapping

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard
from torch.nn.functional import pad

from agentrl.learn.dtensor import local
from agentrl.weight_sync.safetensors import SafetensorsLayout, TensorShape, bytes_of
from agentrl.weight_sync.shared_memory import SharedMemoryFile, SharedMemoryWeights

BUCKET_BYTES = 16 * 2**20
"""Bytes of all ranks together that are under way at once."""


def gather_weights(
    weights: Mapping[str, Tensor],
    types: Mapping[str, torch.dtype],
    *,
    tied: Mapping[str, str],
    group: dist.ProcessGroup,
) -> Mapping[str, Tensor]:
    """Return weights whole, on the first rank of a group; nothing on the others. A collective.

    Those named in `types` are rounded to these, and `tied` are names of others' tensors. What is in
    no shards is the same on all ranks. Raises `OSError` where there is no memory left for them.
    """
    shaped = {n: TensorShape(tuple(v.shape), types.get(n, v.dtype)) for n, v in weights.items()}
    layout = SafetensorsLayout.from_shapes(shaped)
    file = SharedMemoryFile() if group.rank() == 0 else None
    if file is not None:
        file.put(torch.frombuffer(bytearray(layout.header), dtype=torch.uint8), start=0)
    for name in layout.tensors:
        value, dtype = weights[name].detach(), shaped[name].dtype
        pieces = (
            _gather_shards(value, dtype, group)
            if isinstance(value, DTensor)
            else _yield_whole(value)
        )
        for start, piece in pieces:
            if file is not None:
                data = bytes_of(piece.to(dtype).cpu())
                file.put(data, start=layout.starts[name] + start * dtype.itemsize)
    return {} if file is None else SharedMemoryWeights(file, layout, tied=tied)


def _yield_whole(value: Tensor) -> Iterator[tuple[int, Tensor]]:
    yield 0, value


def _gather_shards(
    value: DTensor, dtype: torch.dtype, group: dist.ProcessGroup
) -> Iterator[tuple[int, Tensor]]:
    """Yield on the first rank parts of a tensor in one dimension, and where they begin in it.

    A collective: every rank goes through all of it.
    """
    assert value.placements == (Shard(0),), f"{value.placements}: FSDP shards only rows"
    size = group.size()
    # As `torch.chunk` divides rows: all have as many, but for the last ones.
    share = -(-value.shape[0] // size) * (value.numel() // max(1, value.shape[0]))
    shard = local(value).flatten()
    step = max(1, BUCKET_BYTES // (size * dtype.itemsize))
    for begin in range(0, share, step):
        length = min(step, share - begin)
        mine = shard[begin : begin + length].to(dtype)
        sent = pad(mine, (0, length - len(mine)))
        parts = [torch.empty_like(sent) for _ in range(size)] if group.rank() == 0 else None
        # As bytes, which every backend carries.
        bytes_parts = None if parts is None else [bytes_of(part) for part in parts]
        dist.gather(bytes_of(sent), bytes_parts, group=group, group_dst=0)
        for rank, part in enumerate(parts or ()):
            start = rank * share + begin
            if start < value.numel():
                yield start, part[: value.numel() - start]
