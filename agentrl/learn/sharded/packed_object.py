"""Objects on their way to other ranks: their arrays apart from the rest, and never copied into it.

Between processes of one machine the arrays lie in memory that all of them map, and that is gone
with the last of them; what goes through a socket is the rest, and the memory's descriptor. Between
machines the arrays are broadcast as one tensor. Whoever unpacks an object may not write into them.
"""

import mmap
import os
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any

import torch
import torch.distributed as dist

from agentrl.weight_sync.shared_memory import SharedMemoryFile

ALIGNMENT_BYTES = 64
"""Arrays begin at multiples of it."""
BUCKET_BYTES = 2**26
"""Bytes that are broadcast at a time."""
MEMORY_NAME = "agentrl-batch"


@dataclass(frozen=True, slots=True)
class PackedObject:
    """An object that is pickled but for its arrays."""

    pickled: bytes
    sizes: tuple[int, ...]
    """Bytes of each array."""

    @property
    def size_bytes(self) -> int:
        """Bytes of all arrays where they lie one after the other, each aligned."""
        return sum(map(_align, self.sizes))

    def unpack(self, data: memoryview) -> Any:
        """Return the object, whose arrays are views of `data`; they keep it."""
        starts = accumulate(map(_align, self.sizes), initial=0)
        pairs = zip(starts, self.sizes, strict=False)
        return pickle.loads(self.pickled, buffers=[data[at : at + size] for at, size in pairs])


def pack(value: Any) -> tuple[PackedObject, list[memoryview]]:
    """Return an object without its arrays, and the bytes of these, which are still its own."""
    buffers: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    arrays = [buffer.raw() for buffer in buffers]
    return PackedObject(pickled, tuple(array.nbytes for array in arrays)), arrays


class SharedObject:
    """A packed object whose arrays lie in memory of this machine, as long as this is there or
    another process maps them."""

    def __init__(self, value: Any) -> None:
        self._packed, arrays = pack(value)
        self._memory: SharedMemoryFile | None = None
        if self._packed.size_bytes:
            self._memory = SharedMemoryFile(MEMORY_NAME)
            self._memory.append(_pad(arrays))

    def send(self, connection: Connection, pid: int) -> None:
        """Send it to process `pid`, which has the other end of a Unix socket."""
        connection.send(self._packed)
        if self._memory is not None:
            send_handle(connection, self._memory.descriptor, pid)


def receive_object(connection: Connection) -> Any:
    """Return the next object of `SharedObject.send`.

    Only for a socket whose other end is known: unpickling runs code. Raises `EOFError` where it is
    closed.
    """
    packed: PackedObject = connection.recv()
    if not packed.size_bytes:
        return packed.unpack(memoryview(b""))
    descriptor = recv_handle(connection)
    try:
        mapped = mmap.mmap(descriptor, packed.size_bytes, prot=mmap.PROT_READ)
    finally:
        os.close(descriptor)
    return packed.unpack(memoryview(mapped))


def broadcast_object(value: Any, group: dist.ProcessGroup) -> Any:
    """Return the first rank's object on every rank of a group of Gloo. A collective."""
    is_first = group.rank() == 0
    arrays: list[memoryview] = []
    head: list[Any] = [None]
    if is_first:
        head[0], arrays = pack(value)
    dist.broadcast_object_list(head, group=group, group_src=0)
    packed: PackedObject = head[0]
    data = torch.empty(packed.size_bytes, dtype=torch.uint8)
    view = data.numpy().data
    at = 0
    for part in _pad(arrays):
        view[at : at + len(part)] = part
        at += len(part)
    for bucket in data.split(BUCKET_BYTES):
        dist.broadcast(bucket, group=group, group_src=0)
    return value if is_first else packed.unpack(view.toreadonly())


def _align(size: int) -> int:
    return -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _pad(arrays: list[memoryview]) -> Iterator[memoryview]:
    """Yield arrays, and what is missing to the place of the next one."""
    zeros = memoryview(bytes(ALIGNMENT_BYTES))
    for array in arrays:
        yield array
        yield zeros[: _align(array.nbytes) - array.nbytes]
