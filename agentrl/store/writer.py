"""The writer: keeps a run's events, in the order they happen, and gives them back after a crash."""

import asyncio
import struct
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from agentrl.errors import ConfigError
from agentrl.events.kinds import Event, GroupCompleted, GroupDropped, RunResumed
from agentrl.events.state import RunState
from agentrl.store.blobs import BlobStore
from agentrl.store.codec import encode
from agentrl.store.disk_sync import DiskSyncer
from agentrl.store.errors import StoreError, machine_errors
from agentrl.store.lock import WriterLock
from agentrl.store.opening import (
    PRUNED_LEDGER,
    SEGMENTS,
    Damaged,
    check_position,
    open_ledger,
)
from agentrl.store.reader import EventArchive
from agentrl.store.segment import SegmentWriter, segment_file, segments
from agentrl.store.settings import StoreSettings


class StoreWriter:
    """The record of one run. Made by `open`; one process writes, from one thread.

    Every method returns when its record survives the end of this process. Where more is wanted
    (`durable`), await `wait_settled` before anything acts on what was recorded.
    """

    def __init__(
        self, folder: Path, settings: StoreSettings, lock: WriterLock, *, damaged: Damaged
    ) -> None:
        self.folder = folder
        self.settings = settings
        self._lock = lock
        self._ledger, end = open_ledger(folder, damaged=damaged)
        self.torn_bytes = end.torn_bytes
        """What was cut away when the store was opened."""
        linger = {"process": None, "interval": settings.interval_s, "power": 0.0}
        self._syncer = DiskSyncer(linger_s=linger[settings.durable], after=self._ledger.sync)
        self._objects = BlobStore(folder / "objects", written=self._syncer.note)
        self._objects.clean()
        self._log = SegmentWriter(
            folder / SEGMENTS,
            number=end.segment,
            offset=end.offset,
            sequence=end.sequence,
            limit_bytes=settings.segment_bytes,
            written=self._syncer.note,
        )
        self._archive = EventArchive(folder, self._ledger, self._objects)
        self._must_restore = end.sequence > 0
        self._midway = False
        """A write has begun and not ended: an error or a second Ctrl-C came in between."""

    @classmethod
    def open(
        cls,
        folder: Path,
        settings: StoreSettings | None = None,
        *,
        resume: bool = False,
        damaged: Damaged = "refuse",
    ) -> Self:
        """Make the store of a new run, or with `resume` open the one of a run that goes on.

        Then `restore` comes before anything else. Raises `ConfigError` if another process writes
        the store, or if it holds records and `resume` is off; `DamagedStore` if bytes are not what
        was written, except for a last record that a killed process left unfinished: that is cut
        away and counted. With `damaged="cut"` the log is moved aside from the damage on.
        """
        with machine_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        if not resume and any((folder / SEGMENTS).glob("*.segment")):
            raise ConfigError(
                f"{folder} already holds the record of a run; resume that run, or choose another "
                "folder"
            )
        lock = WriterLock(folder / "lock")
        try:
            return cls(folder, settings or StoreSettings(), lock, damaged=damaged)
        except BaseException:
            lock.close()
            raise

    @property
    def position(self) -> int:
        """Number of records."""
        return self._log.sequence

    def append(self, event: Event) -> int:
        """Record an event, and return its number.

        Raises `ValueError` for an event that could not be read back exactly.
        """
        if self._must_restore:
            raise StoreError(
                f"{self.folder} was opened to resume; call restore before anything is recorded"
            )
        return self._write(event)

    def restore(self, *, position: int = 0, step: int = 0) -> RunState:
        """Return the state that a run goes on with from the checkpoint of `step`.

        The checkpoint holds `position`; 0 is the beginning. Groups trained after it are complete
        again, and those that were dropped after it and count are open again; open trajectories
        stand after their last completed turn. Raises `StoreError` if the log does not reach the
        position.
        """
        pruned_for = max(self._ledger.list_pruned().values(), default=0)
        check_position(
            position, step=step, end=self.position, pruned_for=pruned_for, folder=self.folder
        )
        self._write(RunResumed(position=position, step=step, torn_bytes=self.torn_bytes))
        self._must_restore = False
        next_group, next_rollout = self._ledger.next_ids()
        state = RunState()
        for group in self._ledger.groups("open"):
            self._archive.fold(group, state, position=position)
        for group in self._ledger.groups("complete"):
            self._archive.fold(group, state, position=position)
            state.apply(GroupCompleted(group=group))
        for group in self._ledger.list_requeued():
            self._archive.fold(group, state, position=position)
            state.apply(GroupDropped(group=group, reason="", requeued=True))
        state.groups = dict(sorted(state.groups.items()))
        state.next_group, state.next_rollout = next_group, next_rollout
        state.task_position = self._ledger.task_position()
        return state

    # Around it.

    async def wait_settled(self) -> None:
        """Return when what was recorded is as durable as the settings promise.

        At once but for `power`, where it waits for the disk, together with everybody who waits.
        """
        if self.settings.durable == "power":
            await asyncio.wrap_future(self._syncer.wait_settled())

    def sync(self) -> None:
        """Bring everything recorded to the disk; blocks until the disk has answered.

        Raises `StoreError` where the log is no longer at its path.
        """
        self._log.check_place()
        self._syncer.wait_settled().result()

    def prune(self, *, position: int) -> int:
        """Remove segments that no checkpoint from `position` on can need; return how many.

        `position` is that of the oldest checkpoint that is kept. With `keep: all` nothing goes.
        """
        if self.settings.keep == "all":
            return 0
        numbers = self._ledger.prunable(position, below=self._log.number)
        if numbers:
            self.sync()
            self._ledger.mark_pruned(numbers, position=position)
            # The ledger and its copy are all there is to tell a pruned segment from a lost one.
            self._ledger.sync()
            self._ledger.copy(self.folder / PRUNED_LEDGER)
        log = self.folder / SEGMENTS
        with machine_errors(log):
            # Also those that a killed process had no time to remove.
            for number in segments(log).keys() & self._ledger.list_pruned().keys():
                segment_file(log, number).unlink(missing_ok=True)
        return len(numbers)

    def tasks_from(self, group: int) -> list[tuple[int, str]]:
        """Return the ids of groups from `group` on, and of their tasks, in order."""
        return self._ledger.tasks_from(group)

    def counts(self) -> dict[str, int]:
        """Return groups and trajectories by state, turns, tokens and resumptions."""
        return self._ledger.counts()

    def close(self) -> None:
        """Sync and close everything. Idempotent; raises `StoreError` if the sync failed."""
        with ExitStack() as closing:  # a full disk fails any of them, and the lock must go
            for part in (self._lock, self._ledger, self._log, self._syncer):
                closing.callback(part.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _write(self, event: Event) -> int:
        try:
            kind, payload = encode(event, self._objects)
        except struct.error as error:
            raise ValueError(
                f"a token id or version of a {type(event).__name__} is out of range: {error}"
            ) from error
        self._syncer.check()
        if self._midway:
            raise StoreError(
                f"{self.folder} was interrupted during a write; open it again to repair it"
            )
        self._midway = True
        try:
            sequence, place = self._log.append(kind, payload)
        except StoreError:
            self._midway = False  # the log is as it was, or refuses by itself
            raise
        self._ledger.enter(sequence, place, event)
        self._midway = False
        return sequence
