"""Index of the log in SQLite: states, positions, and the place of each record.

The ledger is written after the log and never the other way round: it may be behind, and catches up.
Any other process may read it while the run writes. Its pages have checksums (`page_checks`), so
that a byte which the disk has changed is never read; then it is made again from the log.
"""

import os
import shutil
import sqlite3
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

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
    GrowthEvent,
    RolloutAbandoned,
    RolloutFinished,
    RolloutStarted,
    RunResumed,
    TurnCompleted,
    TurnExtended,
)
from agentrl.runtime.atomic_files import disk_advice, sync_path
from agentrl.store.errors import DamagedStore, StoreError, machine_errors
from agentrl.store.lineage import ResumptionMark, TrainedMark, find_trained, line_to
from agentrl.store.page_checks import (
    PAGE_BYTES,
    PageChecks,
    check_file,
    find_foreign_pages,
    find_logged_pages,
)
from agentrl.store.segment import RecordLocation
from agentrl.trajectory import outcome_name, reward_of

IndexedStatus = Literal["open", "complete", "trained", "dropped"]

FORMAT = 4
LOG_BYTES = 32 * 2**20
"""Size of the ledger's write-ahead log at which a write waits until it is emptied."""
_LOOK_EVERY = 64
"""Records between two looks at that size."""
_MACHINE_ERRORS = frozenset(
    {
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
    }
)
"""SQLite's errors that say nothing about the bytes of the ledger."""
_SCHEMA = """
PRAGMA user_version = 4;
CREATE TABLE records (
  sequence INTEGER PRIMARY KEY, kind TEXT NOT NULL, segment INTEGER NOT NULL,
  offset INTEGER NOT NULL, length INTEGER NOT NULL, group_id INTEGER, trajectory INTEGER);
CREATE INDEX records_by_group ON records (group_id, sequence);
CREATE TABLE groups (
  id INTEGER PRIMARY KEY, task TEXT NOT NULL, task_order INTEGER NOT NULL, seed TEXT NOT NULL,
  size INTEGER NOT NULL, opened_at_step INTEGER NOT NULL, state TEXT NOT NULL,
  reason TEXT NOT NULL DEFAULT '', trained_at_step INTEGER, settled_at INTEGER, retry_of INTEGER);
CREATE INDEX groups_by_state ON groups (state, id);
CREATE TABLE trajectories (
  id INTEGER PRIMARY KEY, group_id INTEGER NOT NULL, sample INTEGER NOT NULL, seed TEXT NOT NULL,
  attempt INTEGER NOT NULL, parent INTEGER, fork_node INTEGER, fork_strategy TEXT,
  state TEXT NOT NULL, outcome TEXT, reward REAL, turns INTEGER NOT NULL DEFAULT 0,
  tokens INTEGER NOT NULL DEFAULT 0, oldest_version INTEGER, newest_version INTEGER);
CREATE INDEX trajectories_by_group ON trajectories (group_id, sample);
CREATE TABLE marks (sequence INTEGER NOT NULL, group_id INTEGER NOT NULL, step INTEGER NOT NULL);
CREATE TABLE drops (
  sequence INTEGER NOT NULL, group_id INTEGER NOT NULL, reason TEXT NOT NULL,
  requeued INTEGER NOT NULL, counts INTEGER NOT NULL);
CREATE TABLE checkpoints (sequence INTEGER PRIMARY KEY, step INTEGER NOT NULL);
CREATE TABLE resumptions (
  sequence INTEGER PRIMARY KEY, position INTEGER NOT NULL, step INTEGER NOT NULL,
  torn_bytes INTEGER NOT NULL);
CREATE TABLE versions (version INTEGER PRIMARY KEY, first_record INTEGER NOT NULL);
CREATE TABLE pruned (segment INTEGER PRIMARY KEY, position INTEGER NOT NULL);
"""


_REQUEUED = """
SELECT groups.id FROM groups JOIN drops ON groups.id = group_id AND settled_at = sequence
WHERE state = 'dropped' AND requeued
AND groups.id NOT IN (SELECT retry_of FROM groups WHERE retry_of IS NOT NULL)"""


class StoreIndex:
    """The database of one store. The writer's; `readonly` opens it beside a writer."""

    def __init__(self, file: Path, *, readonly: bool = False) -> None:
        """Open a ledger that `make_ledger` has made.

        Raises `DamagedStore` where it is not as it was written, `StoreError` where there is none or
        the machine does not let it be opened.
        """
        self.file = file
        self._versions: set[int] = set()
        """Versions that are entered: most records bring no new one."""
        self._fresh: set[int] = set()
        """Those of the record that is being entered."""
        self._entered, self._log_limit = 0, LOG_BYTES
        self._writes = threading.Lock()
        """Held by who writes, or copies the write-ahead log into the file."""
        self._is_closed = False
        self._writable = not readonly
        if not file.is_file():
            raise StoreError(f"{file}: no such file; {file.parent} holds no store")
        with self._explain_errors():
            changed = find_foreign_pages(file)
            if changed is None:
                raise self._build_damage_error("its checksums are missing or damaged")
            if changed:
                raise self._build_damage_error(
                    f"page {min(changed)} was changed after it was written"
                )
            self._base = _connect(file, mode="ro" if readonly else "rw")
            try:
                if readonly and not self._log_bytes() and _is_barred(self._base):
                    self._base.close()
                    self._base = _connect(file, mode="ro&immutable=1")
                self._prepare()
            except BaseException:
                self._base.close()
                raise

    def enter(self, sequence: int, place: RecordLocation, event: Event) -> None:
        """Enter one record, whole or not at all."""
        self._entered += 1
        if self._entered % _LOOK_EVERY == 0 and self._log_bytes() > self._log_limit:
            self.sync()
            # Whoever reads it just then keeps it as it is.
            self._log_limit = max(LOG_BYTES, 2 * self._log_bytes())
        with self._writes:
            try:
                self._fresh = set()
                self._base.execute("BEGIN")
                self._enter(sequence, place, event)
                self._base.execute("COMMIT")
                self._versions |= self._fresh
            except sqlite3.Error as error:
                if self._base.in_transaction:
                    self._base.execute("ROLLBACK")
                raise StoreError(
                    f"{self.file} could not be written: {error}; the record itself is in the log. "
                    f"{disk_advice(error)}, and resume the run"
                ) from error

    def last(self) -> tuple[int, RecordLocation] | None:
        """Return the number and place of the newest record entered."""
        rows = self.rows("SELECT * FROM records ORDER BY sequence DESC LIMIT 1")
        return (rows[0]["sequence"], _read_location(rows[0])) if rows else None

    def places(self, group: int) -> list[tuple[int, RecordLocation]]:
        """Return the numbers and places of a group's records, in order."""
        rows = self.rows("SELECT * FROM records WHERE group_id = ? ORDER BY sequence", group)
        return [(row["sequence"], _read_location(row)) for row in rows]

    def places_after(self, sequence: int, *, limit: int) -> list[tuple[int, RecordLocation]]:
        """Return at most `limit` records after number `sequence` whose segments are still there."""
        rows = self.rows(
            "SELECT * FROM records WHERE sequence > ? AND segment NOT IN "
            "(SELECT segment FROM pruned) ORDER BY sequence LIMIT ?",
            sequence,
            limit,
        )
        return [(row["sequence"], _read_location(row)) for row in rows]

    def groups(self, *states: IndexedStatus) -> list[int]:
        """Return the groups in these states, oldest first; all without any."""
        if not states:
            return [row["id"] for row in self.rows("SELECT id FROM groups ORDER BY id")]
        placeholders = ",".join("?" * len(states))
        query = f"SELECT id FROM groups WHERE state IN ({placeholders}) ORDER BY id"
        return [row["id"] for row in self.rows(query, *states)]

    def state(self, group: int) -> IndexedStatus | None:
        """Return a group's state, or None if there is no such group."""
        rows = self.rows("SELECT state FROM groups WHERE id = ?", group)
        return rows[0]["state"] if rows else None

    def next_ids(self) -> tuple[int, int]:
        """Return the ids of the next group and the next trajectory."""
        (row,) = self.rows(
            "SELECT (SELECT coalesce(max(id) + 1, 0) FROM groups) AS g,"
            " (SELECT coalesce(max(id) + 1, 0) FROM trajectories) AS t"
        )
        return row["g"], row["t"]

    def task_position(self) -> int:
        """Return the number of tasks the sampler had handed out for the groups there are."""
        return self.rows("SELECT coalesce(max(task_order) + 1, 0) AS n FROM groups")[0]["n"]

    def counts(self) -> dict[str, int]:
        """Return the number of groups and trajectories in each state, and all turns and tokens."""
        found: dict[str, int] = {}
        for table in ("groups", "trajectories"):
            for row in self.rows(f"SELECT state, count(*) AS n FROM {table} GROUP BY state"):
                found[f"{table}/{row['state']}"] = row["n"]
        (sums,) = self.rows(
            "SELECT coalesce(sum(turns), 0) AS turns, coalesce(sum(tokens), 0) AS tokens,"
            " (SELECT count(*) FROM resumptions) AS resumptions FROM trajectories"
        )
        return found | dict(sums)

    def find_trained(self, position: int) -> dict[int, int]:
        """Return the groups in the weights of the checkpoint at `position`, and their steps."""
        marks = [
            TrainedMark(*row) for row in self.rows("SELECT sequence, group_id, step FROM marks")
        ]
        return find_trained(position, marks, self._read_resumptions())

    def list_requeued(self) -> list[int]:
        """Return dropped groups whose tasks are to be tried again and have not been, in order."""
        return [row["id"] for row in self.rows(f"{_REQUEUED} ORDER BY groups.id")]

    def tasks_from(self, group: int) -> list[tuple[int, str]]:
        """Return the ids of groups from `group` on and of their tasks, in order."""
        rows = self.rows("SELECT id, task FROM groups WHERE id >= ? ORDER BY id", group)
        return [(row["id"], row["task"]) for row in rows]

    def prunable(self, position: int, *, below: int) -> list[int]:
        """Return segments before number `below` whose groups no checkpoint from `position` needs.

        A group is needed unless it was dropped, with no other try to come, or trained before
        `position`.
        """
        rows = self.rows(
            "SELECT DISTINCT segment FROM records WHERE segment < ?"
            " AND segment NOT IN (SELECT segment FROM pruned) EXCEPT"
            " SELECT segment FROM records JOIN groups ON groups.id = group_id"
            " WHERE state IN ('open', 'complete') OR settled_at >= ?"
            f" OR groups.id IN ({_REQUEUED})",
            below,
            position,
        )
        return [row["segment"] for row in rows]

    def mark_pruned(self, numbers: Sequence[int], *, position: int) -> None:
        """Remember that segments are gone on purpose, and from which position a run can resume."""
        rows = [(number, position) for number in numbers]
        with self._writes, self._explain_errors():
            self._base.execute("BEGIN")
            self._base.executemany("INSERT OR IGNORE INTO pruned VALUES (?, ?)", rows)
            self._base.execute("COMMIT")

    def list_pruned(self) -> dict[int, int]:
        """Return the segments that were pruned, and the position each was pruned for."""
        return {row["segment"]: row["position"] for row in self.rows("SELECT * FROM pruned")}

    def group_rows(self) -> list[sqlite3.Row]:
        """Return a row per group, oldest first; `is_pruned` where records of it are gone."""
        return self.rows(
            "SELECT id, task, state, size, opened_at_step, trained_at_step, reason,"
            " EXISTS (SELECT 1 FROM records WHERE group_id = groups.id AND segment IN"
            " (SELECT segment FROM pruned)) AS is_pruned FROM groups ORDER BY id"
        )

    def trajectory_rows(self, group: int) -> list[sqlite3.Row]:
        """Return a row per trajectory of a group, in the order they began."""
        return self.rows(
            "SELECT id, sample, state, outcome, reward, turns, tokens, attempt FROM trajectories"
            " WHERE group_id = ? ORDER BY id",
            group,
        )

    def outcomes(self) -> dict[str, int]:
        """Return the number of trajectories that have ended in each way."""
        rows = self.rows(
            "SELECT outcome, count(*) AS n FROM trajectories WHERE state = 'ended' GROUP BY outcome"
        )
        return {row["outcome"]: row["n"] for row in rows}

    def group_rewards(self) -> list[tuple[int, float]]:
        """Return step and mean reward of every trained group that has one, oldest first."""
        rows = self.rows(
            "SELECT trained_at_step AS step, avg(reward) AS mean FROM groups JOIN trajectories"
            " ON group_id = groups.id WHERE groups.state = 'trained'"
            " AND trajectories.state = 'ended' AND reward IS NOT NULL"
            " GROUP BY groups.id ORDER BY groups.id"
        )
        return [(row["step"], row["mean"]) for row in rows]

    def rows(self, query: str, *values: Any) -> list[sqlite3.Row]:
        """Return the rows of a query."""
        with self._explain_errors():
            return self._base.execute(query, values).fetchall()

    def sync(self) -> None:
        """Bring what is committed to the disk, and empty the write-ahead log.

        May be called from any thread while others write. They wait for what was written since it
        began. A log that another process reads just then is emptied the next time.
        """
        with (
            self._explain_errors(),
            closing(_connect(self.file, timeout_s=0.0)) as other,
            closing(_connect(self.file, timeout_s=0.0)) as reader,
        ):
            # While somebody reads, SQLite appends to the log. Else a write in between could begin
            # it anew, and which pages are copied here would be told nowhere.
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            # What is done here, others need not wait for.
            other.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            with self._writes:
                reader.execute("COMMIT")
                other.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
                self._checks = self._checks.update(self.file, find_logged_pages(self.file))
                self._checks.write(self.file)
                other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def copy(self, file: Path) -> None:
        """Put a copy of the ledger and its checksums at `file`, on the disk, whole or not at all.

        Raises `StoreError` where there is no room for it.
        """
        partial = file.with_name(f".{file.name}.partial")
        with self._explain_errors():
            _remove_ledger(partial)
            try:
                with closing(sqlite3.connect(partial)) as copy:
                    self._base.backup(copy)
                _seal(partial, "DELETE")
                for part in (partial, check_file(partial)):
                    sync_path(part)
                _move_ledger(partial, file)
                sync_path(file.parent)
            except BaseException:
                with suppress(OSError):
                    _remove_ledger(partial)
                raise

    def close(self) -> None:
        """Close the database. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self._writable:
                # SQLite copies what is left when it closes, and knows of no checksums.
                with suppress(sqlite3.Error, OSError):
                    self.sync()
        finally:
            self._base.close()

    def _prepare(self) -> None:
        (form,) = self._base.execute("PRAGMA user_version").fetchone()
        if form != FORMAT:
            if self._writable:  # the log says whether it is of another version
                raise self._build_damage_error(
                    f"it has format {form}, but this version reads {FORMAT}"
                )
            raise StoreError(
                f"{self.file} has format {form}, but this version reads {FORMAT}; use the version "
                "of agentrl that wrote it"
            )
        if not self._writable:
            return
        before = PageChecks.read(self.file)
        changed = before.differences(PageChecks.from_file(self.file)) if before else set[int]()
        _, frames, _ = self._base.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        # SQLite leaves out frames whose checksums are wrong: pages may be there half.
        if before is None or changed - find_logged_pages(self.file, frames=max(0, frames)):
            raise self._build_damage_error("its write-ahead log was changed after it was written")
        self._checks = PageChecks.from_file(self.file)
        self._base.execute("PRAGMA synchronous = NORMAL")
        # `sync` does it, in a thread: it waits for the disk.
        self._base.execute("PRAGMA wal_autocheckpoint = 0")
        self.sync()

    def _log_bytes(self) -> int:
        with suppress(FileNotFoundError):
            return os.stat(f"{self.file}-wal").st_size
        return 0

    @contextmanager
    def _explain_errors(self) -> Generator[None]:
        """Say of an error of SQLite or the machine what it is of, and what is to be done."""
        try:
            with machine_errors(self.file):
                yield
        except sqlite3.Error as error:
            text = " ".join(str(error).split())
            code = getattr(error, "sqlite_errorcode", None)
            if code is not None and code & 0xFF in _MACHINE_ERRORS:
                raise self._build_machine_error(text) from error
            raise self._build_damage_error(text) from error
        except (ValueError, OverflowError) as error:  # a text that is no UTF-8, a number too large
            raise self._build_damage_error(str(error)) from error

    def _build_machine_error(self, text: str) -> StoreError:
        if not self._writable:
            return StoreError(
                f"{self.file} cannot be read: {text}. Copy the run folder to a writable place, and "
                "open the copy"
            )
        return StoreError(
            f"{self.file} cannot be used: {text}; no recorded data is lost. {disk_advice(text)}, "
            "and resume the run"
        )

    def _build_damage_error(self, text: str) -> DamagedStore:
        return DamagedStore(
            f"{self.file} is damaged: {text}; it is rebuilt from the log when the run is resumed "
            "(agentrl train CONFIG --resume)"
        )

    def _enter(self, sequence: int, place: RecordLocation, event: Event) -> None:
        group = getattr(event, "group", None)
        trajectory = getattr(event, "trajectory", None)
        self._base.execute(
            "INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                sequence,
                type(event).__name__,
                *(place.segment, place.offset, place.length),
                *(group, trajectory),
            ),
        )
        for query, values in _list_changes(sequence, event):
            self._base.execute(query, values)
        if isinstance(event, GrowthEvent):
            self._count(sequence, event)
        if isinstance(event, RunResumed):
            self._redo_trained(sequence, event.position)
            self._redo_dropped(event.position)

    def _count(self, sequence: int, event: GrowthEvent) -> None:
        tokens = sum([len(node.token_ids) for node in event.nodes])
        versions = frozenset[int]().union(*[node.versions for node in event.nodes])
        new_versions = versions - self._versions
        for version in sorted(new_versions):
            self._base.execute("INSERT OR IGNORE INTO versions VALUES (?, ?)", (version, sequence))
        exchange: EnvExchange | None = getattr(event, "exchange", None)
        turns = int(exchange is not None and exchange.action is not None)
        if versions:
            self._base.execute(
                "UPDATE trajectories SET turns = turns + ?, tokens = tokens + ?,"
                " oldest_version = min(coalesce(oldest_version, ?3), ?3),"
                " newest_version = max(coalesce(newest_version, ?4), ?4) WHERE id = ?5",
                (turns, tokens, min(versions), max(versions), event.trajectory),
            )
        elif tokens or turns:
            self._base.execute(
                "UPDATE trajectories SET turns = turns + ?, tokens = tokens + ? WHERE id = ?",
                (turns, tokens, event.trajectory),
            )
        self._fresh |= new_versions

    def _redo_trained(self, sequence: int, position: int) -> None:
        trained = self.find_trained(position)
        settled = {row["id"] for row in self.rows("SELECT id FROM groups WHERE state = 'trained'")}
        for group in settled - trained.keys():
            self._base.execute(
                "UPDATE groups SET state = 'complete', trained_at_step = NULL, settled_at = NULL"
                " WHERE id = ?",
                (group,),
            )
        for group in trained.keys() - settled:
            self._base.execute(
                "UPDATE groups SET state = 'trained', trained_at_step = ?, settled_at = ?"
                " WHERE id = ? AND state = 'complete'",
                (trained[group], sequence, group),
            )

    def _redo_dropped(self, position: int) -> None:
        dropped = self._find_dropped(position)
        rows = self.rows(
            "SELECT id, state FROM groups WHERE id IN (SELECT group_id FROM drops WHERE counts)"
        )
        for row in rows:
            group, drop = row["id"], dropped.get(row["id"])
            if drop is None and row["state"] == "dropped":
                self._base.execute(
                    "UPDATE groups SET state = 'open', reason = '', settled_at = NULL WHERE id = ?",
                    (group,),
                )
            elif drop is not None and row["state"] in ("open", "complete"):
                self._base.execute(
                    "UPDATE groups SET state = 'dropped', reason = ?, settled_at = ? WHERE id = ?",
                    (drop["reason"], drop["sequence"], group),
                )

    def _find_dropped(self, position: int) -> dict[int, sqlite3.Row]:
        line = line_to(position, self._read_resumptions())
        rows = self.rows("SELECT * FROM drops ORDER BY sequence")
        return {
            row["group_id"]: row
            for row in rows
            if any(row["sequence"] in stretch for stretch in line)
        }

    def _read_resumptions(self) -> list[ResumptionMark]:
        return [
            ResumptionMark(*row) for row in self.rows("SELECT sequence, position FROM resumptions")
        ]


def make_ledger(file: Path, *, base: Path | None = None) -> None:
    """Make an empty ledger, or one that is a copy of `base`; whole or not at all.

    What lay at `file` is gone. Raises `StoreError` where there is no room for it.
    """
    partial = file.with_name(f".{file.name}.partial")
    try:
        with machine_errors(file):
            _remove_ledger(partial)
            if base is None:
                with closing(sqlite3.connect(partial, isolation_level=None)) as connection:
                    connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
                    connection.executescript(f"BEGIN; {_SCHEMA} COMMIT;")
            else:
                shutil.copyfile(base, partial)
            _seal(partial, "WAL")
            _move_ledger(partial, file)
    except BaseException as error:
        with suppress(OSError):
            _remove_ledger(partial)
        if not isinstance(error, sqlite3.Error):
            raise
        raise StoreError(
            f"{file} could not be created: {error}; no recorded data is lost. "
            f"{disk_advice(error)}, and resume the run"
        ) from error


def _connect(file: Path, *, mode: str = "rw", timeout_s: float = 10.0) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{file.absolute().as_uri()}?mode={mode}",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        timeout=timeout_s,
    )
    connection.row_factory = sqlite3.Row
    return connection


def _is_barred(base: sqlite3.Connection) -> bool:
    """Return whether SQLite wants to make files beside a database, and may not.

    It does so even to read one that has a write-ahead log, be the log empty or not there. A run
    that goes on has made them already: here it lies on a file system that is full or mounted
    read-only, or has ended in a folder of somebody else's.
    """
    try:
        base.execute("PRAGMA user_version").fetchone()
    except sqlite3.OperationalError as error:
        return error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR)
    return False


def _seal(file: Path, journal: Literal["WAL", "DELETE"]) -> None:
    """Say how a closed ledger will be changed, and write its checksums."""
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute(f"PRAGMA journal_mode = {journal}").fetchall()
    PageChecks.from_file(file).write(file)


def _move_ledger(partial: Path, file: Path) -> None:
    for suffix in ("-wal", "-shm", ".check"):
        file.with_name(file.name + suffix).unlink(missing_ok=True)
    partial.replace(file)
    check_file(partial).replace(check_file(file))


def _remove_ledger(file: Path) -> None:
    for suffix in ("", "-wal", "-shm", "-journal", ".check"):
        file.with_name(file.name + suffix).unlink(missing_ok=True)


def _read_location(row: sqlite3.Row) -> RecordLocation:
    return RecordLocation(row["segment"], row["offset"], row["length"])


def _escape_text(text: str) -> str:
    """Return a text as SQLite takes it: a tokenizer can make one that UTF-8 cannot hold."""
    return text.encode(errors="backslashreplace").decode()


def _list_changes(sequence: int, event: Event) -> Iterator[tuple[str, tuple[Any, ...]]]:
    match event:
        case GroupOpened(group=group, request=request):
            # A seed has 64 bits without a sign, and SQLite's integers have one.
            yield (
                "INSERT INTO groups (id, task, task_order, seed, size, opened_at_step, retry_of,"
                " state) VALUES (?, ?, ?, ?, ?, ?, ?, 'open')",
                (
                    *(
                        group,
                        _escape_text(request.task.id),
                        event.order,
                        str(event.seed),
                        event.size,
                    ),
                    *(event.step, request.retry_of),
                ),
            )
        case RolloutStarted(fork=fork):
            forked = (None,) * 3 if fork is None else (fork.parent, fork.node, fork.strategy)
            row = (event.trajectory, event.group, event.sample, str(event.seed), event.attempt)
            yield (
                "INSERT INTO trajectories (id, group_id, sample, seed, attempt, parent, fork_node,"
                " fork_strategy, state) VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'open')",
                (*row, *forked),
            )
        case RolloutFinished(trajectory=trajectory, leaf=leaf):
            yield (
                "UPDATE trajectories SET state = 'ended', outcome = ?, reward = ? WHERE id = ?",
                (outcome_name(leaf.outcome), reward_of(leaf.outcome), trajectory),
            )
        case RolloutAbandoned(trajectory=trajectory, reason=reason):
            yield (
                "UPDATE trajectories SET state = 'abandoned', outcome = ? WHERE id = ?",
                (_escape_text(reason), trajectory),
            )
        case GroupCompleted(group=group):
            yield "UPDATE groups SET state = 'complete' WHERE id = ?", (group,)
        case GroupResized(group=group, size=size):
            yield "UPDATE groups SET size = ? WHERE id = ?", (size, group)
        case BranchesPlanned(trajectory=trajectory, fork=fork):
            yield (
                "UPDATE trajectories SET parent = ?, fork_node = ?, fork_strategy = ? WHERE id = ?",
                (fork.parent, fork.node, fork.strategy, trajectory),
            )
        case GroupDropped(group=group, reason=reason):
            yield (
                "INSERT INTO drops VALUES (?, ?, ?, ?, ?)",
                (sequence, group, _escape_text(reason), event.requeued, event.counts),
            )
            yield (
                "UPDATE groups SET state = 'dropped', reason = ?, settled_at = ? WHERE id = ?",
                (_escape_text(reason), sequence, group),
            )
        case GroupsTrained(groups=groups, step=step):
            for group in groups:
                yield "INSERT INTO marks VALUES (?, ?, ?)", (sequence, group, step)
                yield (
                    "UPDATE groups SET state = 'trained', trained_at_step = ?, settled_at = ?"
                    " WHERE id = ?",
                    (step, sequence, group),
                )
        case CheckpointStarted(step=step):
            yield "INSERT INTO checkpoints VALUES (?, ?)", (sequence, step)
        case TurnCompleted() | TurnExtended() | ComponentNoted():
            pass  # `_count` takes the one; the other says nothing to the ledger
        case RunResumed():
            values = (sequence, event.position, event.step, event.torn_bytes)
            yield "INSERT INTO resumptions VALUES (?, ?, ?, ?)", values
