"""Weights that are broadcast, where they arrive: in memory, whole, before an engine sees them."""

import asyncio
import mmap
import os
import threading
from dataclasses import dataclass

import torch

from agentrl.runtime.threads import run_in_thread
from agentrl.weight_sync.shared_memory import SharedMemoryFile
from agentrl.weight_sync.transfer_group import GroupRendezvous, WeightTransferGroup


@dataclass(frozen=True, slots=True)
class ReceivedWeights:
    """Weights received in one group: a file of safetensors in memory."""

    name: str
    file: SharedMemoryFile


class WeightReceiver:
    """An engine's end of the groups that it is in.

    One group is kept for the next version, until there is another one to keep.
    """

    def __init__(self) -> None:
        self._kept: WeightTransferGroup | None = None
        self._turn = asyncio.Lock()

    async def receive(
        self, meeting: GroupRendezvous, *, size_bytes: int, bucket_bytes: int, keeps: bool
    ) -> ReceivedWeights:
        """Receive so many bytes in a group, which is formed unless it is the one that was kept,
        and kept or left.

        Raises `EngineError` when the group breaks; it is left then. A cancelled caller leaves it.
        """
        async with self._turn:
            group = None
            if keeps:
                group, self._kept = self._kept, None
                if group is not None and group.meeting != meeting:
                    group.close()
                    group = None
            stop = threading.Event()
            try:
                group, file = await run_in_thread(
                    _receive_file, meeting, group, size_bytes, bucket_bytes, stop
                )
            finally:
                stop.set()
            if keeps:
                self._kept = group
            else:
                group.close()
            return ReceivedWeights(meeting.name, file)

    def close(self) -> None:
        """Leave every group. Idempotent."""
        group, self._kept = self._kept, None
        if group is not None:
            group.close()


def _receive_file(
    meeting: GroupRendezvous,
    group: WeightTransferGroup | None,
    size_bytes: int,
    bucket_bytes: int,
    stop: threading.Event,
) -> tuple[WeightTransferGroup, SharedMemoryFile]:
    group = group or WeightTransferGroup.join(meeting, stop)
    try:
        file = SharedMemoryFile()
        os.ftruncate(file.descriptor, size_bytes)
        mapped = mmap.mmap(file.descriptor, size_bytes)
        target = torch.frombuffer(mapped, dtype=torch.uint8)
        group.receive(target, bucket_bytes=bucket_bytes, stop=stop)
    except BaseException:
        group.close()
        raise
    if stop.is_set():  # nobody is left to keep it
        group.close()
    return group, file
