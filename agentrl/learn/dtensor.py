"""Local and whole values of sharded tensors (DTensor); others are the same on all ranks."""

from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor, which is the tensor itself where it is in no shards."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def gather_tensor(tensor: Tensor) -> Tensor:
    """Return all of a tensor, on its device. A collective for one in shards."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def alike(value: Tensor, like: Tensor) -> Tensor:
    """Return a whole tensor, the same on all ranks, on the device and in the shards of another."""
    value = value.to(like.device)
    if not isinstance(like, DTensor) or isinstance(value, DTensor):
        return value
    # Everybody has it already, so nobody sends anything.
    return distribute_tensor(value, like.device_mesh, like.placements, src_data_rank=None)
