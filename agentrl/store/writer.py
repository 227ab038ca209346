"""The writer: what a run records, in the order it happens, and what it gets back after a crash."""

import asyncio
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from agentrl.env import ForkStrategy
from agentrl.errors import ConfigError, FailureKind
from agentrl.events.kinds import (
    BranchesPlanned,
    CheckpointStarted,
    ComponentNoted,
    EnvExchange,
    Event,
    GroupCompleted,
    GroupDropped,
    GroupOpened,
    GroupResized,
    GroupsTrained,
    RolloutAbandoned,
    RolloutFinished,
    RolloutStarted,
    RunResumed,
    TurnCompleted,
)
from agentrl.store.blobs import BlobStore
from agentrl.store.book import GroupRecorder, RecordedPath, UnrecordedNodes
from agentrl.store.codec import encode
from agentrl.store.disk_sync import DiskSyncer
from agentrl.store.errors import StoreError, machine_errors
from agentrl.store.index import GroupState
from agentrl.store.lock import WriterLock
from agentrl.store.opening import (
    PRUNED_LEDGER,
    SEGMENTS,
    Damaged,
    check_position,
    open_ledger,
)
from agentrl.store.reader import EventArchive
from agentrl.store.restored import RunState
from agentrl.store.segment import SegmentWriter, segment_file, segments
from agentrl.store.settings import StoreSettings
from agentrl.task import Task
from agentrl.trajectory import Leaf, Tree


class StoreWriter:
    """The record of one run. Made by `open`; one process writes, from one thread.

    Every method returns when its record survives the end of this process. Where more is wanted
    (`durable`), await `settled` before anything acts on what was recorded.
    """

    def __init__(
        self, folder: Path, settings: StoreSettings, lock: WriterLock, *, damaged: Damaged
    ) -> None:
        """Internal: use `open`."""
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
        self._next_group, self._next_trajectory = self._ledger.next_ids()
        self._books: dict[int, GroupRecorder] = {}
        """Of open groups."""
        self._group_of: dict[int, int] = {}
        """By trajectory, of open groups."""
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
    def next_group(self) -> int:
        """Return the id that the next group gets."""
        return self._next_group

    @property
    def position(self) -> int:
        """Number of records."""
        return self._log.sequence

    # What happens to a group and its trajectories, in order.

    def open_group(
        self,
        task: Task,
        *,
        order: int,
        seed: int,
        size: int,
        step: int,
        max_turns: int | None = None,
        max_turn_tokens: int | None = None,
        round: int = 0,
        round_size: int = 0,
        tries: int = 0,
        retry_of: int | None = None,
    ) -> int:
        """Record that a task was taken from the sampler; return the group's id.

        `order` is how many tasks were taken before it; `size` how many trajectories are wanted, of
        `max_turns` each, and those of `max_turn_tokens`; the others are those of `GroupOpened`.
        Raises `ValueError` for a task that cannot be read back exactly.
        """
        group = self._next_group
        opened = GroupOpened(
            group=group,
            task=task,
            order=order,
            seed=seed,
            size=size,
            step=step,
            max_turns=max_turns,
            max_turn_tokens=max_turn_tokens,
            round=round,
            round_size=round_size,
            tries=tries,
            retry_of=retry_of,
        )
        self._write(opened)
        self._books[group] = GroupRecorder()
        self._next_group += 1
        return group

    def begin(
        self, group: int, *, sample: int, seed: int, attempt: int = 0, version: int = 0
    ) -> int:
        """Record that a trajectory begins, before its environment is reset; return its id.

        `version` is the newest that all engines have.
        """
        book = self._book(group)
        began = RolloutStarted(
            trajectory=self._next_trajectory,
            group=group,
            sample=sample,
            seed=seed,
            version=version,
            attempt=attempt,
            fork=None,
        )
        self._write(began)
        return self._named(book, RecordedPath(group))

    def turn(self, trajectory: int, tree: Tree, node: int | None, exchange: EnvExchange) -> int:
        """Record a reset or a completed turn, which ends at `node` of the group's tree.

        Everything on the way to `node` that is not recorded yet is recorded with it. Return the
        number of the record.
        """
        return self._grow(trajectory, tree, node, exchange)

    def part(self, trajectory: int, tree: Tree, node: int) -> int:
        """Record the first part of a turn, for a parked trajectory; return the record's number.

        Restored, it goes on from its last token.
        """
        return self._grow(trajectory, tree, node, None)

    def fork(
        self,
        parent: int,
        tree: Tree,
        node: int,
        *,
        sample: int,
        seed: int,
        strategy: ForkStrategy,
        why: Mapping[str, Any] | None = None,
        attempt: int = 0,
        version: int = 0,
    ) -> int:
        """Record that a sibling leaves `parent`, open or ended, at `node`; return the sibling's id.

        Its world is as after the last exchange of the parent on the way to `node`, and `version`
        the parent's.
        """
        group, book = self._of(parent)
        fork, growth = book.leaving(parent, tree, node, strategy=strategy, why=why or {})
        began = RolloutStarted(
            trajectory=self._next_trajectory,
            group=group,
            sample=sample,
            seed=seed,
            version=version,
            attempt=attempt,
            fork=fork,
            nodes=growth.nodes,
        )
        self._write(began)
        book.names |= growth.names
        return self._named(book, RecordedPath(group, book.lines[parent].stops[: fork.shared]))

    def branched(
        self,
        trajectory: int,
        tree: Tree,
        node: int,
        *,
        strategy: ForkStrategy,
        why: Mapping[str, Any] | None = None,
    ) -> None:
        """Record that an open trajectory which stands nowhere yet begins where others have been."""
        group, book = self._open_line(trajectory)
        parent = book.passed(tree, node)
        fork, growth = book.leaving(parent, tree, node, strategy=strategy, why=why or {})
        self._write(
            BranchesPlanned(trajectory=trajectory, group=group, fork=fork, nodes=growth.nodes)
        )
        book.names |= growth.names
        book.lines[trajectory].stops = book.lines[parent].stops[: fork.shared]

    def note(
        self,
        group: int,
        note: Mapping[str, Any],
        *,
        trajectory: int | None = None,
        with_end: bool = False,
    ) -> None:
        """Record what somebody has to know to go on with an open group.

        With `with_end` it counts only if the next record of `trajectory` is its end.
        """
        self._book(group)
        self._write(
            ComponentNoted(group=group, trajectory=trajectory, note=note, with_end=with_end)
        )

    def enlarge(self, group: int, size: int) -> None:
        """Record that an open group trains on `size` trajectories now."""
        self._book(group)
        self._write(GroupResized(group=group, size=size))

    def finished(
        self, trajectory: int, tree: Tree, leaf: Leaf, exchange: EnvExchange | None = None
    ) -> int:
        """Record a trajectory's end, with its last turn; return the record's number.

        The leaf need not be on the tree yet.
        """
        group, book = self._open_line(trajectory)
        growth = book.growth(tree, leaf.node)
        ended = RolloutFinished(
            trajectory=trajectory,
            group=group,
            nodes=growth.nodes,
            leaf=replace(leaf, node=growth.at),
            exchange=exchange,
        )
        sequence = self._write(ended)
        self._enter(book, trajectory, growth, exchange)
        book.lines[trajectory].state = "ended"
        return sequence

    def abandon(self, trajectory: int, reason: str, *, failure: FailureKind | None = None) -> int:
        """Record that a trajectory is given up, and its turns with it; return the record's number.

        It may have ended, as long as its group is open. `failure` is the kind of one that failed
        and begins again.
        """
        group, book = self._of(trajectory)
        if book.lines[trajectory].state == "abandoned":
            raise StoreError(f"trajectory {trajectory} was already abandoned; abandon it only once")
        turns = book.lines[trajectory].turns
        event = RolloutAbandoned(
            trajectory=trajectory, group=group, reason=reason, turns=turns, failure=failure
        )
        sequence = self._write(event)
        book.lines[trajectory].state = "abandoned"
        return sequence

    def unfinished(self, group: int) -> list[int]:
        """Return the trajectories of an open group that have not ended."""
        return self._book(group).open

    def group_complete(self, group: int) -> None:
        """Record that a group may train; every trajectory of it has ended."""
        if still := self._book(group).open:
            raise StoreError(
                f"trajectories {still} of group {group} are open, but a group is complete only "
                "when all its trajectories have ended: finish or abandon them first"
            )
        self._write(GroupCompleted(group=group))
        self._forget(group)

    def drop(
        self, group: int, reason: str, *, requeued: bool = False, counts: bool = False
    ) -> None:
        """Record that an open or complete group will not train; see `GroupDropped`."""
        self._check(group, "open", "complete")
        self._write(GroupDropped(group=group, reason=reason, requeued=requeued, counts=counts))
        self._forget(group)

    # What happens to the weights.

    def trained(self, groups: Sequence[int], *, step: int) -> None:
        """Record that the optimiser has used these groups, in the step that ended as `step`.

        Raises `StoreError` for one that is not complete or was trained before.
        """
        if len({*groups}) != len(groups):
            raise StoreError(
                f"groups {sorted(groups)} contain a duplicate, but a group trains only once; name "
                "each once"
            )
        for group in groups:
            self._check(group, "complete")
        self._write(GroupsTrained(groups=tuple(groups), step=step))

    def checkpoint(self, step: int) -> int:
        """Bring all records to the disk, and return the position the checkpoint has to hold.

        Blocks until the disk has answered. What is recorded as trained so far belongs to the
        checkpoint that is written next; until that is whole, a resumed run does not count it.
        """
        self._write(CheckpointStarted(step=step))
        self.sync()
        return self.position

    def restore(self, *, position: int = 0, step: int = 0) -> RunState:
        """Go on from the checkpoint of `step` that holds `position`, or from the beginning.

        Groups trained after that checkpoint are complete again, and those that were dropped after
        it and count are open again; open trajectories stand after their last completed turn.
        Raises `StoreError` if the log does not reach the position.
        """
        pruned_for = max(self._ledger.pruned().values(), default=0)
        check_position(
            position, step=step, end=self.position, pruned_for=pruned_for, folder=self.folder
        )
        trained_before = {*self._ledger.groups("trained")}
        self._write(
            RunResumed(position=position, step=step, torn_bytes=self.torn_bytes), restoring=True
        )
        reopened = trained_before - {*self._ledger.groups("trained")}
        read = partial(self._archive.group, position=position)
        unfinished = tuple(map(read, self._ledger.groups("open")))
        complete = tuple(map(read, self._ledger.groups("complete")))
        self._books = {group.id: GroupRecorder.of(group) for group in unfinished}
        self._group_of = {t.id: group.id for group in unfinished for t in group.trajectories}
        self._must_restore = False
        return RunState(
            open=unfinished,
            complete=complete,
            task_position=self._ledger.task_position(),
            reopened=tuple(sorted(reopened)),
            requeued=tuple(map(self._archive.group, self._ledger.requeued())),
            ahead=tuple(g.id for g in (*unfinished, *complete) if g.newest_version > step),
            torn_bytes=self.torn_bytes,
        )

    # Around it.

    async def settled(self) -> None:
        """Return when what was recorded is as durable as the settings promise.

        At once but for `power`, where it waits for the disk, together with everybody who waits.
        """
        if self.settings.durable == "power":
            await asyncio.wrap_future(self._syncer.settled())

    def sync(self) -> None:
        """Bring everything recorded to the disk; blocks until the disk has answered."""
        self._syncer.settled().result()

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
            for number in segments(log).keys() & self._ledger.pruned().keys():
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
        try:
            self._syncer.close()
        finally:
            self._log.close()
            self._ledger.close()
            self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _write(self, event: Event, *, restoring: bool = False) -> int:
        if self._must_restore and not restoring:
            raise StoreError(
                f"{self.folder} was opened to resume; call restore before anything is recorded"
            )
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

    def _grow(
        self, trajectory: int, tree: Tree, node: int | None, exchange: EnvExchange | None
    ) -> int:
        group, book = self._open_line(trajectory)
        growth = book.growth(tree, node)
        event = TurnCompleted(
            trajectory=trajectory, group=group, nodes=growth.nodes, at=growth.at, exchange=exchange
        )
        sequence = self._write(event)
        self._enter(book, trajectory, growth, exchange)
        return sequence

    def _enter(
        self,
        book: GroupRecorder,
        trajectory: int,
        growth: UnrecordedNodes,
        exchange: EnvExchange | None,
    ) -> None:
        book.names |= growth.names
        book.lines[trajectory].stop(growth.at, exchange)

    def _named(self, book: GroupRecorder, line: RecordedPath) -> int:
        trajectory = self._next_trajectory
        book.lines[trajectory] = line
        self._group_of[trajectory] = line.group
        self._next_trajectory += 1
        return trajectory

    def _book(self, group: int) -> GroupRecorder:
        if group not in self._books:
            state = self._ledger.state(group) or "unknown"
            raise StoreError(
                f"group {group} is {state}, but only an open group can grow or complete"
            )
        return self._books[group]

    def _of(self, trajectory: int) -> tuple[int, GroupRecorder]:
        if trajectory not in self._group_of:
            raise StoreError(f"trajectory {trajectory} belongs to no open group; open one first")
        group = self._group_of[trajectory]
        return group, self._books[group]

    def _open_line(self, trajectory: int) -> tuple[int, GroupRecorder]:
        group, book = self._of(trajectory)
        if (state := book.lines[trajectory].state) != "open":
            raise StoreError(
                f"trajectory {trajectory} is {state}, but only an open trajectory can continue"
            )
        return group, book

    def _forget(self, group: int) -> None:
        if book := self._books.pop(group, None):
            for trajectory in book.lines:
                del self._group_of[trajectory]

    def _check(self, group: int, *states: GroupState) -> None:
        if (state := self._ledger.state(group)) not in states:
            raise StoreError(
                f"group {group} is {state or 'unknown'}, but must be {' or '.join(states)}; a "
                "group completes once, and is trained or dropped once"
            )
