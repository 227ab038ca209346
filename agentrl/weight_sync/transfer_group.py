"""A process group of torch that lives for some weights: formed at a store, broken up, formed anew.

It is no default group and knows of none, so that a trainer whose ranks have one of their own can be
in it too. Whoever forms one gives it a name that no other group has; a broken group is closed, and
the next one has another name.

    rank 0     the trainer: has the store, and sends
    others     engines: connect to the store, and receive

Between CPUs a group is Gloo's: when a process of it dies, the others hear of it at once, and every
operation has a deadline. Between GPUs it is NCCL's.
"""

import datetime
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.distributed import (
    PrefixStore,  # pyright: ignore[reportPrivateImportUsage]
    TCPStore,  # pyright: ignore[reportPrivateImportUsage]
)

from agentrl.errors import EngineError
from agentrl.weight_sync.buckets import SafetensorsBytes, buckets

Backend = Literal["gloo", "nccl"]
IN_FLIGHT = 2
"""Buckets under way at once: one is filled while the other travels."""
LOOK_S = 0.001
"""Between two looks at what is under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRendezvous:
    """Settings of one rank in a group. Plain values: engines are told over a socket."""

    name: str
    """No other group of this store has it."""
    host: str
    port: int
    """Port of the store."""
    rank: int
    size: int
    address: str
    """Address of this rank's machine, as the others reach it."""
    backend: Backend
    deadline_s: float
    """Deadline for all ranks to be there, and again for each bucket."""


def store_at(host: str, *, deadline_s: float) -> TCPStore:
    """Return a new store that is reached at one address of this machine, at a free port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, 0), family=family, backlog=1024)
    port = listener.getsockname()[1]
    return TCPStore(
        host,
        port,
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
        timeout=datetime.timedelta(seconds=deadline_s),
    )


class WeightTransferGroup:
    """One rank's end of a group. One thread at a time may use it."""

    def __init__(self, meeting: GroupRendezvous, group: Any, store: TCPStore) -> None:
        """Take a group that is formed; see `join`."""
        self.meeting = meeting
        self._group: Any = group
        # Ranks that come to know each other later still ask it.
        self._store = store

    @classmethod
    def join(
        cls, meeting: GroupRendezvous, stop: threading.Event, store: TCPStore | None = None
    ) -> "WeightTransferGroup":
        """Wait until every rank is there, and form the group; rank 0 brings the store.

        Raises `EngineError` when one is late, or something fails, or `stop` is set meanwhile.
        """
        timeout = datetime.timedelta(seconds=meeting.deadline_s)
        with _blame_group(meeting):
            if store is None:
                store = TCPStore(
                    meeting.host,
                    meeting.port,
                    is_master=False,
                    wait_for_workers=False,
                    timeout=timeout,
                )
            prefix_store = PrefixStore(meeting.name, store)
            prefix_store.set(f"here/{meeting.rank}", "")
            _await_all(prefix_store, meeting, stop)
            make = _build_nccl if meeting.backend == "nccl" else _build_gloo
            return cls(meeting, make(prefix_store, meeting, timeout), store)

    def send(self, row: SafetensorsBytes, *, bucket_bytes: int, stop: threading.Event) -> None:
        """Send a row of bytes to all others. Raises `EngineError` as `join` does."""
        device = self._find_device()
        spare = [
            torch.empty(min(bucket_bytes, row.size_bytes), dtype=torch.uint8, device=device)
            for _ in range(IN_FLIGHT)
        ]
        flying: deque[tuple[Any, Tensor]] = deque()
        with _blame_group(self.meeting):
            for start, end in buckets(row.size_bytes, bucket_bytes):
                if not spare:
                    spare.append(self._await_bucket(flying, stop))
                buffer = spare.pop()
                bucket = buffer[: end - start]
                row.copy_to(bucket, start=start)
                flying.append((self._broadcast(bucket), buffer))
            while flying:
                self._await_bucket(flying, stop)

    def receive(self, target: Tensor, *, bucket_bytes: int, stop: threading.Event) -> None:
        """Receive as many bytes as `target`, a row in this machine's memory, has room for.

        Raises `EngineError` as `join` does; then what has come is of no use.
        """
        flying: deque[tuple[Any, Tensor]] = deque()
        places: deque[Tensor] = deque()
        device = self._find_device()

        def land() -> None:
            bucket, place = self._await_bucket(flying, stop), places.popleft()
            if bucket is not place:
                place.copy_(bucket)

        with _blame_group(self.meeting):
            for start, end in buckets(len(target), bucket_bytes):
                if len(flying) == IN_FLIGHT:
                    land()
                place = target[start:end]
                bucket = place if device.type == "cpu" else torch.empty_like(place, device=device)
                places.append(place)
                flying.append((self._broadcast(bucket), bucket))
            while flying:
                land()

    def close(self) -> None:
        """Leave the group: whoever still waits for this rank fails. Idempotent, and does not wait.

        What is under way cannot be stopped: others hear of it when that has ended, by the deadline
        of a bucket at the latest.
        """
        group, self._group = self._group, None
        if group is not None:
            groups = [group]
            # Whoever holds it last waits for what is under way.
            del group
            name = "agentrl-leaves-group"
            threading.Thread(target=lambda: groups.pop().abort(), name=name, daemon=True).start()

    def _find_device(self) -> torch.device:
        if self.meeting.backend == "gloo":
            return torch.device("cpu")
        return torch.device("cuda", torch.cuda.current_device())

    def _broadcast(self, bucket: Tensor) -> Any:
        from torch.distributed import BroadcastOptions

        options = BroadcastOptions()
        options.rootRank = 0
        options.rootTensor = 0
        options.timeout = datetime.timedelta(seconds=self.meeting.deadline_s)
        options.asyncOp = True
        return self._group.broadcast([bucket], options)

    def _await_bucket(self, flying: deque[tuple[Any, Tensor]], stop: threading.Event) -> Tensor:
        work, buffer = flying.popleft()
        until_s = time.monotonic() + self.meeting.deadline_s
        try:
            while not work.is_completed():
                _check(stop)
                if time.monotonic() > until_s:
                    raise EngineError(f"a bucket took longer than {self.meeting.deadline_s:g} s")
                time.sleep(LOOK_S)
            work.wait()
        except BaseException:
            # The error's traceback would keep the group's connections open, and others waiting.
            flying.clear()
            raise
        finally:
            del work
        return buffer


def _await_all(store: Any, meeting: GroupRendezvous, stop: threading.Event) -> None:
    """Wait for all ranks: forming a group cannot be stopped, so that nobody begins it alone."""
    until_s = time.monotonic() + meeting.deadline_s
    everybody = [f"here/{rank}" for rank in range(meeting.size)]
    while not store.check(everybody):
        _check(stop)
        if time.monotonic() > until_s:
            missing = [r for r in range(meeting.size) if not store.check([everybody[r]])]
            raise EngineError(
                f"ranks {missing} of {meeting.size} did not join within {meeting.deadline_s:g} s"
            )
        time.sleep(LOOK_S)


def _check(stop: threading.Event) -> None:
    if stop.is_set():
        raise EngineError("it was abandoned")


def _build_gloo(store: Any, meeting: GroupRendezvous, timeout: datetime.timedelta) -> Any:
    from torch.distributed import ProcessGroupGloo

    kind: Any = ProcessGroupGloo
    options = kind._Options()
    options._devices = [kind.create_device(hostname=meeting.address)]
    options._timeout = timeout
    return kind(store, meeting.rank, meeting.size, options)


def _build_nccl(store: Any, meeting: GroupRendezvous, timeout: datetime.timedelta) -> Any:
    import torch.distributed as dist

    kind: Any = getattr(dist, "ProcessGroupNCCL", None)
    if kind is None:
        raise EngineError("this torch is built without NCCL; set engine.broadcast.backend: gloo")
    options = kind.Options()
    options._timeout = timeout
    # Torch would end the whole process when a rank is lost, and the trainer is to go on without it.
    before = os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING")
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
    try:
        return kind(store, meeting.rank, meeting.size, options)
    finally:
        if before is None:
            del os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"]
        else:
            os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = before


@contextmanager
def _blame_group(meeting: GroupRendezvous) -> Generator[None]:
    try:
        yield
    except (EngineError, RuntimeError, OSError, ValueError) as error:
        # The store's and the group's own errors are kinds of RuntimeError.
        raise EngineError(
            f"weight broadcast ({meeting.backend}, rank {meeting.rank} of {meeting.size} at "
            f"{meeting.address}): {error}"
        ) from error
