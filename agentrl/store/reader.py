"""Reading a store: a live one from another process, or one whose run has ended."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from agentrl.events.kinds import (
    ComponentNoted,
    Event,
    GroupCompleted,
    GroupDropped,
    RolloutAbandoned,
    RolloutFinished,
)
from agentrl.events.state import GroupState, RolloutStatus, RunState
from agentrl.store.blobs import BlobStore
from agentrl.store.codec import decode
from agentrl.store.index import IndexedStatus, StoreIndex
from agentrl.store.opening import LEDGER, SEGMENTS
from agentrl.store.segment import RecordLocation, read_record

BATCH = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupIndexRow:
    """Summary of a group, without reading its records."""

    id: int
    task: str
    state: IndexedStatus
    size: int
    step: int
    """Step that trained it, or the one that it was opened for."""
    reason: str
    is_pruned: bool
    """Its tokens are gone, or some of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutIndexRow:
    """Summary of a trajectory, without reading its records."""

    id: int
    sample: int
    state: RolloutStatus
    outcome: str | None
    reward: float | None
    turns: int
    tokens: int
    attempt: int


class EventArchive:
    """Records by what the ledger says of them."""

    def __init__(self, folder: Path, ledger: StoreIndex, objects: BlobStore) -> None:
        self._log = folder / SEGMENTS
        self._ledger = ledger
        self._objects = objects

    def fold(self, group: int, state: RunState, *, position: int = 0) -> GroupState:
        """Fold a group's events into a state, and return it, open, however it ended.

        `position` is that of the checkpoint that the run goes on from. Raises `DamagedStore` if
        its records are not there.
        """
        later: list[Event] = []
        for sequence, place in self._ledger.places(group):
            event = self._event(sequence, place)
            if isinstance(event, GroupCompleted | GroupDropped):
                continue  # the index knows which of them count: see `lineage`
            state.apply(event)
            if sequence >= position and isinstance(
                event, RolloutFinished | RolloutAbandoned | ComponentNoted
            ):
                later.append(event)
        state.groups[group].later += later
        return state.groups[group]

    def events(self, *, after: int = -1) -> Iterator[tuple[int, Event]]:
        """Yield every record there is after number `after`; those pruned are left out."""
        while batch := self._ledger.places_after(after, limit=BATCH):
            for after, place in batch:
                yield after, self._event(after, place)

    def _event(self, sequence: int, place: RecordLocation) -> Event:
        return decode(read_record(self._log, place, sequence=sequence), self._objects)


class StoreReader:
    """A store, read-only. Sees a record as soon as the writer has returned from writing it."""

    def __init__(self, folder: Path) -> None:
        """Raises `StoreError` where there is no store."""
        self._ledger = StoreIndex(folder / LEDGER, readonly=True)
        self._archive = EventArchive(folder, self._ledger, BlobStore(folder / "objects"))

    def groups(self, *states: IndexedStatus) -> list[int]:
        """Return the groups in these states, oldest first; all without any."""
        return self._ledger.groups(*states)

    def state(self, group: int) -> IndexedStatus | None:
        """Return a group's state, or None if there is no such group."""
        return self._ledger.state(group)

    def group(self, group: int) -> GroupState:
        """Return a group as it stands: its tree, and trajectories that ended or go on."""
        return self._archive.fold(group, RunState(keeps_observations=True))

    def events(self, *, after: int = -1) -> Iterator[tuple[int, Event]]:
        return self._archive.events(after=after)

    def facts(self) -> list[GroupIndexRow]:
        """Return the ledger's summary of every group, oldest first."""
        return [
            GroupIndexRow(
                id=row["id"],
                task=row["task"],
                state=row["state"],
                size=row["size"],
                step=row["trained_at_step"] or row["opened_at_step"] + 1,
                reason=row["reason"],
                is_pruned=bool(row["is_pruned"]),
            )
            for row in self._ledger.group_rows()
        ]

    def trajectories(self, group: int) -> list[RolloutIndexRow]:
        """Return the ledger's summaries of a group's trajectories, in the order they began."""
        return [RolloutIndexRow(**row) for row in self._ledger.trajectory_rows(group)]

    def outcomes(self) -> dict[str, int]:
        """Return the number of trajectories that have ended in each way."""
        return self._ledger.outcomes()

    def group_rewards(self) -> list[tuple[int, float]]:
        """Return step and mean reward of every trained group that has one, oldest first."""
        return self._ledger.group_rewards()

    @property
    def newest(self) -> int:
        """Return the number of the newest record; -1 without any."""
        last = self._ledger.last()
        return -1 if last is None else last[0]

    def find_trained(self, position: int) -> dict[int, int]:
        """Return the groups in the weights of the checkpoint at `position`, and at which step."""
        return self._ledger.find_trained(position)

    def counts(self) -> dict[str, int]:
        """Return groups and trajectories by state, turns, tokens and resumptions."""
        return self._ledger.counts()

    def close(self) -> None:
        """Close the files. Idempotent."""
        self._ledger.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
