"""What the log adds up to, in SQLite: states, positions, and where each record lies.

The ledger is written after the log and never the other way round: it may be behind, and catches up.
Any other process may read it while the run writes.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

from agentrl.store.damage import DamagedStore, StoreError
from agentrl.store.event import (
    Abandoned,
    Began,
    Branched,
    Checkpointed,
    Completed,
    Dropped,
    Ended,
    Enlarged,
    Event,
    GroupOpened,
    Grown,
    Noted,
    Resumed,
    Trained,
)
from agentrl.store.lineage import Mark, Resumption, trained_by
from agentrl.store.segment import Place
from agentrl.trajectory import outcome_name, reward_of

GroupState = Literal["open", "complete", "trained", "dropped"]

FORMAT = 1
_SCHEMA = """
PRAGMA user_version = 1;
CREATE TABLE records (
  sequence INTEGER PRIMARY KEY, kind TEXT NOT NULL, segment INTEGER NOT NULL,
  offset INTEGER NOT NULL, length INTEGER NOT NULL, group_id INTEGER, trajectory INTEGER);
CREATE INDEX records_by_group ON records (group_id, sequence);
CREATE TABLE groups (
  id INTEGER PRIMARY KEY, task TEXT NOT NULL, task_order INTEGER NOT NULL, seed TEXT NOT NULL,
  size INTEGER NOT NULL, opened_at_step INTEGER NOT NULL, state TEXT NOT NULL,
  reason TEXT NOT NULL DEFAULT '', trained_at_step INTEGER, settled_at INTEGER);
CREATE INDEX groups_by_state ON groups (state, id);
CREATE TABLE trajectories (
  id INTEGER PRIMARY KEY, group_id INTEGER NOT NULL, sample INTEGER NOT NULL, seed TEXT NOT NULL,
  attempt INTEGER NOT NULL, parent INTEGER, fork_node INTEGER, fork_strategy TEXT,
  state TEXT NOT NULL, outcome TEXT, reward REAL, turns INTEGER NOT NULL DEFAULT 0,
  tokens INTEGER NOT NULL DEFAULT 0, oldest_version INTEGER, newest_version INTEGER);
CREATE INDEX trajectories_by_group ON trajectories (group_id, sample);
CREATE TABLE marks (sequence INTEGER NOT NULL, group_id INTEGER NOT NULL, step INTEGER NOT NULL);
CREATE TABLE checkpoints (sequence INTEGER PRIMARY KEY, step INTEGER NOT NULL);
CREATE TABLE resumptions (
  sequence INTEGER PRIMARY KEY, position INTEGER NOT NULL, step INTEGER NOT NULL,
  torn_bytes INTEGER NOT NULL);
CREATE TABLE versions (version INTEGER PRIMARY KEY, first_record INTEGER NOT NULL);
CREATE TABLE pruned (segment INTEGER PRIMARY KEY, position INTEGER NOT NULL);
"""


class Ledger:
    """The database of one store. The writer's; `readonly` opens it beside a writer."""

    def __init__(self, file: Path, *, readonly: bool = False) -> None:
        self.file = file
        self._versions: set[int] = set()
        """Versions that are entered: most records bring no new one."""
        self._fresh: set[int] = set()
        """Those of the record that is being entered."""
        if readonly and not file.is_file():
            raise StoreError(f"{file}: no such file; {file.parent} holds no store")
        mode = "ro" if readonly else "rwc"
        try:
            self._base = sqlite3.connect(
                f"{file.absolute().as_uri()}?mode={mode}",
                uri=True,
                isolation_level=None,
                check_same_thread=False,
            )
            self._prepare(readonly=readonly)
        except sqlite3.DatabaseError as error:
            raise self._damaged(error) from error

    def enter(self, sequence: int, place: Place, event: Event) -> None:
        """Enter one record, whole or not at all."""
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
                f"{self.file} could not be written: {error}; the record itself is in the log. Make "
                "room on the disk and resume the run"
            ) from error

    def last(self) -> tuple[int, Place] | None:
        """Return the number and place of the newest record entered."""
        found = self.rows("SELECT * FROM records ORDER BY sequence DESC LIMIT 1")
        return (found[0]["sequence"], _place(found[0])) if found else None

    def places(self, group: int) -> list[tuple[int, Place]]:
        """Return the numbers and places of a group's records, in order."""
        rows = self.rows("SELECT * FROM records WHERE group_id = ? ORDER BY sequence", group)
        return [(row["sequence"], _place(row)) for row in rows]

    def places_after(self, sequence: int, *, limit: int) -> list[tuple[int, Place]]:
        """Return at most `limit` records after number `sequence` whose segments are still there."""
        rows = self.rows(
            "SELECT * FROM records WHERE sequence > ? AND segment NOT IN "
            "(SELECT segment FROM pruned) ORDER BY sequence LIMIT ?",
            sequence,
            limit,
        )
        return [(row["sequence"], _place(row)) for row in rows]

    def groups(self, *states: GroupState) -> list[int]:
        """Return the groups in these states, oldest first; all without any."""
        if not states:
            return [row["id"] for row in self.rows("SELECT id FROM groups ORDER BY id")]
        wanted = ",".join("?" * len(states))
        query = f"SELECT id FROM groups WHERE state IN ({wanted}) ORDER BY id"
        return [row["id"] for row in self.rows(query, *states)]

    def state(self, group: int) -> GroupState | None:
        """Return a group's state, or None if there is no such group."""
        found = self.rows("SELECT state FROM groups WHERE id = ?", group)
        return found[0]["state"] if found else None

    def next_ids(self) -> tuple[int, int]:
        """Return the ids of the next group and the next trajectory."""
        (row,) = self.rows(
            "SELECT (SELECT coalesce(max(id) + 1, 0) FROM groups) AS g,"
            " (SELECT coalesce(max(id) + 1, 0) FROM trajectories) AS t"
        )
        return row["g"], row["t"]

    def task_position(self) -> int:
        """Return how many tasks the sampler had handed out for the groups there are."""
        return self.rows("SELECT coalesce(max(task_order) + 1, 0) AS n FROM groups")[0]["n"]

    def counts(self) -> dict[str, int]:
        """Return how many groups and trajectories are in each state, and all turns and tokens."""
        found: dict[str, int] = {}
        for table in ("groups", "trajectories"):
            for row in self.rows(f"SELECT state, count(*) AS n FROM {table} GROUP BY state"):
                found[f"{table}/{row['state']}"] = row["n"]
        (sums,) = self.rows(
            "SELECT coalesce(sum(turns), 0) AS turns, coalesce(sum(tokens), 0) AS tokens,"
            " (SELECT count(*) FROM resumptions) AS resumptions FROM trajectories"
        )
        return found | dict(sums)

    def trained_by(self, position: int) -> dict[int, int]:
        """Return the groups in the weights of the checkpoint at `position`, and their steps."""
        marks = [Mark(*row) for row in self.rows("SELECT sequence, group_id, step FROM marks")]
        resumed = self.rows("SELECT sequence, position FROM resumptions")
        return trained_by(position, marks, [Resumption(*row) for row in resumed])

    def prunable(self, position: int, *, below: int) -> list[int]:
        """Return segments before number `below` whose groups no checkpoint from `position` needs.

        A group is needed unless it was dropped, or trained before `position`.
        """
        rows = self.rows(
            "SELECT DISTINCT segment FROM records WHERE segment < ?"
            " AND segment NOT IN (SELECT segment FROM pruned) EXCEPT"
            " SELECT segment FROM records JOIN groups ON groups.id = group_id"
            " WHERE state IN ('open', 'complete') OR settled_at >= ?",
            below,
            position,
        )
        return [row["segment"] for row in rows]

    def mark_pruned(self, numbers: Sequence[int], *, position: int) -> None:
        """Remember that segments are gone on purpose, and from which position a run can resume."""
        self._base.executemany(
            "INSERT OR IGNORE INTO pruned VALUES (?, ?)", [(n, position) for n in numbers]
        )

    def pruned(self) -> dict[int, int]:
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
        """Return how many trajectories have ended in each way."""
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
        try:
            return self._base.execute(query, values).fetchall()
        except sqlite3.DatabaseError as error:
            raise self._damaged(error) from error

    def sync(self) -> None:
        """Bring what is committed to the disk. May be called from any thread while others write."""
        with closing(sqlite3.connect(self.file)) as other:
            other.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def close(self) -> None:
        """Close the database. Idempotent."""
        self._base.close()

    def _prepare(self, *, readonly: bool) -> None:
        self._base.row_factory = sqlite3.Row
        self._base.execute("PRAGMA busy_timeout = 10000")
        (form,) = self._base.execute("PRAGMA user_version").fetchone()
        if not readonly:
            self._base.execute("PRAGMA journal_mode = WAL")
            self._base.execute("PRAGMA synchronous = NORMAL")
            # `sync` does it, in a thread: it waits for the disk.
            self._base.execute("PRAGMA wal_autocheckpoint = 0")
            if form == 0:
                self._base.executescript(f"BEGIN; {_SCHEMA} COMMIT;")
                form = FORMAT
        if form != FORMAT:
            raise StoreError(
                f"{self.file} has format {form}, and this version reads {FORMAT}; use the version "
                "of agentrl that wrote it"
            )
        check = self._base.execute("PRAGMA quick_check(1)").fetchone()[0]
        if check != "ok":
            raise sqlite3.DatabaseError(check)

    def _damaged(self, error: sqlite3.DatabaseError) -> DamagedStore:
        return DamagedStore(
            f"{self.file} is damaged: {' '.join(str(error).split())}; remove it with its -wal and "
            "-shm files, and it is made again from the segments when the store is opened (unless "
            "some were pruned: then bring the ledger back from a copy)"
        )

    def _enter(self, sequence: int, place: Place, event: Event) -> None:
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
        for query, values in _changes(sequence, event):
            self._base.execute(query, values)
        if isinstance(event, Began | Grown | Ended | Branched):
            self._count(sequence, event)
        if isinstance(event, Resumed):
            self._redo_trained(sequence, event.position)

    def _count(self, sequence: int, event: Began | Grown | Ended | Branched) -> None:
        """Count what a record adds to its trajectory, in one go."""
        tokens = sum(len(node.token_ids) for node in event.nodes)
        versions = set[int]().union(*(node.versions for node in event.nodes))
        for version in sorted(versions - self._versions):
            self._base.execute("INSERT OR IGNORE INTO versions VALUES (?, ?)", (version, sequence))
        turns = 0
        if isinstance(event, Grown | Ended) and event.exchange is not None:
            turns = int(event.exchange.action is not None)
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
        self._fresh |= versions - self._versions

    def _redo_trained(self, sequence: int, position: int) -> None:
        """Let groups be trained or complete as the checkpoint at `position` has it."""
        trained = self.trained_by(position)
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


def _place(row: sqlite3.Row) -> Place:
    return Place(row["segment"], row["offset"], row["length"])


def _text(text: str) -> str:
    """Return a text as SQLite takes it: a tokenizer can make one that UTF-8 cannot hold."""
    return text.encode(errors="backslashreplace").decode()


def _changes(sequence: int, event: Event) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield what an event changes, besides what it adds to the list of records."""
    match event:
        case GroupOpened(group=group, task=task):
            # A seed has 64 bits without a sign, and SQLite's integers have one.
            yield (
                "INSERT INTO groups (id, task, task_order, seed, size, opened_at_step, state)"
                " VALUES (?, ?, ?, ?, ?, ?, 'open')",
                (group, _text(task.id), event.order, str(event.seed), event.size, event.step),
            )
        case Began(fork=fork):
            forked = (None,) * 3 if fork is None else (fork.parent, fork.node, fork.strategy)
            own = (event.trajectory, event.group, event.sample, str(event.seed), event.attempt)
            yield (
                "INSERT INTO trajectories (id, group_id, sample, seed, attempt, parent, fork_node,"
                " fork_strategy, state) VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'open')",
                (*own, *forked),
            )
        case Ended(trajectory=trajectory, leaf=leaf):
            yield (
                "UPDATE trajectories SET state = 'ended', outcome = ?, reward = ? WHERE id = ?",
                (outcome_name(leaf.outcome), reward_of(leaf.outcome), trajectory),
            )
        case Abandoned(trajectory=trajectory, reason=reason):
            yield (
                "UPDATE trajectories SET state = 'abandoned', outcome = ? WHERE id = ?",
                (_text(reason), trajectory),
            )
        case Completed(group=group):
            yield "UPDATE groups SET state = 'complete' WHERE id = ?", (group,)
        case Enlarged(group=group, size=size):
            yield "UPDATE groups SET size = ? WHERE id = ?", (size, group)
        case Branched(trajectory=trajectory, fork=fork):
            yield (
                "UPDATE trajectories SET parent = ?, fork_node = ?, fork_strategy = ? WHERE id = ?",
                (fork.parent, fork.node, fork.strategy, trajectory),
            )
        case Dropped(group=group, reason=reason):
            yield (
                "UPDATE groups SET state = 'dropped', reason = ?, settled_at = ? WHERE id = ?",
                (_text(reason), sequence, group),
            )
        case Trained(groups=groups, step=step):
            for group in groups:
                yield "INSERT INTO marks VALUES (?, ?, ?)", (sequence, group, step)
                yield (
                    "UPDATE groups SET state = 'trained', trained_at_step = ?, settled_at = ?"
                    " WHERE id = ?",
                    (step, sequence, group),
                )
        case Checkpointed(step=step):
            yield "INSERT INTO checkpoints VALUES (?, ?)", (sequence, step)
        case Grown() | Noted():
            pass  # `_count` takes the one; the other says nothing to the ledger
        case Resumed():
            values = (sequence, event.position, event.step, event.torn_bytes)
            yield "INSERT INTO resumptions VALUES (?, ?, ?, ?)", values
