"""The store: what a run records, what it gets back, and what is refused.

Mutants seen caught: torn end not cut, damage or a torn middle taken for a torn end, no catch-up of
the ledger, a log shorter than its ledger accepted; groups not reopened or trained twice, position
not checked; needed segments pruned; nodes under other ids than their tree's; a fork that shares
every turn, or is replayed with its own seed; parked turns taken for whole; a failed sync forgotten;
a lock that is shared or kept; an interrupted write that goes on; a wait for the disk that can be
cancelled.
"""

import asyncio
import os
import sqlite3
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agentrl.env import Action, Observation
from agentrl.errors import ConfigError
from agentrl.events.history import ActionHistory, RecordedStep, fingerprint
from agentrl.events.kinds import EnvExchange, GroupOpened, TurnExtended
from agentrl.events.state import EventError
from agentrl.message import Image, Message, ToolCall
from agentrl.store.disk_sync import DiskSyncer
from agentrl.store.errors import DamagedStore, StoreError
from agentrl.store.index import StoreIndex
from agentrl.store.opening import Damaged
from agentrl.store.page_checks import PageChecks
from agentrl.store.reader import StoreReader
from agentrl.store.segment import HEAD_BYTES, SegmentWriter, segments
from agentrl.store.settings import StoreSettings
from agentrl.task import Task
from agentrl.trajectory import Failed, Finished, Leaf, Node, Tree
from tests.support.scripted_store import ScriptedStore, complete_groups, open_groups

TASK = Task(prompt="What is 6 * 7?", answer="42", id="t")
QUESTION = Observation((Message("user", "What is 6 * 7?"),), tools=({"name": "multiply"},))
ACT = Action("", (ToolCall("call_0", "multiply", {"a": 6, "b": 7}),))


def sampled(parent: int, *ids: int, version: int = 0, turn: int = 0) -> Node:
    """Return a node of the policy's tokens."""
    return Node(
        parent=parent,
        source="sampled",
        token_ids=ids,
        turn=turn,
        logprobs=tuple(-0.1 * i for i in ids),
        versions=(version,) * len(ids),
    )


def tool(parent: int, *ids: int, turn: int = 1) -> Node:
    """Return a node of the environment's tokens."""
    return Node(parent=parent, source="tool", token_ids=ids, turn=turn, tool_status="ok")


def answered(text: str, *, reward: float = 0.0, done: bool = False) -> EnvExchange:
    """Return a turn whose action was answered with `text`."""
    seen = Observation((Message("tool", text, tool_call_id="call_0", name="multiply"),))
    return EnvExchange.stepping(ACT, (seen, reward, done, False, {}), seconds=1.5)


class Play:
    """One group, played by hand: a prompt, then turns of three tokens and an answer of one."""

    def __init__(self, store: ScriptedStore, *, order: int = 0, size: int = 2) -> None:
        self.store = store
        self.group = store.open_group(TASK, order=order, seed=2**63 + 1, size=size, step=0)
        self.tree = Tree(TASK)
        self.at: dict[int, int] = {}

    def begin(self, sample: int, *, attempt: int = 0) -> int:
        trajectory = self.store.begin(self.group, sample=sample, seed=sample, attempt=attempt)
        prompt = Node(parent=None, source="prompt", token_ids=(1, 2), turn=0)
        self.at[trajectory] = self.tree.share(prompt)
        self.store.turn(
            trajectory, self.tree, self.at[trajectory], EnvExchange.resetting(QUESTION, seconds=0.5)
        )
        return trajectory

    def turn(self, trajectory: int, *ids: int, version: int = 0) -> None:
        node = self.tree.add(sampled(self.at[trajectory], *ids, version=version))
        self.at[trajectory] = self.tree.add(tool(node, 9))
        self.store.turn(trajectory, self.tree, self.at[trajectory], answered(str(ids)))

    def end(self, trajectory: int, *, reward: float = 1.0, version: int = 0) -> Leaf:
        node = self.tree.add(sampled(self.at[trajectory], 5, version=version))
        leaf = Leaf(node=node, outcome=Finished(reward), sample=0, turn_rewards=(reward,))
        self.store.finish(trajectory, self.tree, leaf, answered("42", reward=reward, done=True))
        return leaf

    def complete(self, *, version: int = 0) -> int:
        """Play the group to its end and return it."""
        self.end(self.begin(0), version=version)
        self.store.group_complete(self.group)
        return self.group


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(folder: Path) -> Iterator[ScriptedStore]:
    with ScriptedStore.open(folder) as store:
        yield store


def comes_true(what: Callable[[], bool]) -> bool:
    """Return whether something another thread does happens within half a minute."""
    deadline = time.monotonic() + 30
    while not what() and time.monotonic() < deadline:
        time.sleep(0.01)
    return what()


def crash(store: ScriptedStore) -> Path:
    """Close a store and return its folder; a killed one is tested in test_store_kill.py."""
    store.close()
    return store.folder


def test_open_trajectories_come_back_after_their_last_turn(store: ScriptedStore) -> None:
    play = Play(store)
    first, second = play.begin(0), play.begin(1)
    play.turn(second, 3, 4, version=1)
    play.turn(first, 6, 7)
    play.tree.add(sampled(play.at[first], 8, 8))  # never completed, so never recorded
    with ScriptedStore.open(crash(store), resume=True) as again:
        state = again.restore(step=1)
    (group,) = open_groups(state)
    opened = group.opened
    assert (group.task, opened.order, opened.seed, group.size) == (TASK, 0, 2**63 + 1, 2)
    assert state.task_position == 1
    assert [len(t.exchanges) for t in group.open_rollouts] == [2, 2]
    assert [t.turns for t in group.open_rollouts] == [1, 1]
    one, other = group.open_rollouts
    assert group.tree.tokens(one.at or 0) == (1, 2, 6, 7, 9)
    assert group.tree.tokens(other.at or 0) == (1, 2, 3, 4, 9)
    path = group.tree.path(other.at or 0)
    assert [node.source for node in path] == ["prompt", "sampled", "tool"]
    assert (path[1].logprobs, path[1].versions) == ((-0.1 * 3, -0.4), (1, 1))
    assert (path[2].tool_status, other.seconds, other.turns) == ("ok", 1.5, 1)
    assert not other.mid_turn


def test_turns_that_overlap_keep_their_own_parents(store: ScriptedStore) -> None:
    """Nodes are told of in another order than they were added, and keep the ids they had."""
    play = Play(store)
    first, second = play.begin(0), play.begin(1)
    early = play.tree.add(sampled(play.at[first], 3))
    play.turn(second, 4, 4)
    never = play.tree.add(sampled(play.at[second], 8))  # of a turn that never ends
    play.at[first] = play.tree.add(tool(early, 7))
    store.turn(first, play.tree, play.at[first], answered("late"))
    play.turn(first, 5)
    with ScriptedStore.open(crash(store), resume=True) as again:
        (group,) = open_groups(again.restore())
    one, other = group.open_rollouts
    assert (one.at, other.at) == (play.at[first], play.at[second])
    assert group.tree.tokens(one.at or 0) == (1, 2, 3, 7, 5, 9)
    assert group.tree.tokens(other.at or 0) == (1, 2, 4, 4, 9)
    assert group.tree.nodes == tuple(
        Node(parent=None, source="prompt", token_ids=(), turn=0) if id == never else node
        for id, node in enumerate(play.tree.nodes)
    )
    assert group.told == {*range(8)} - {never}


def test_a_world_comes_back_by_its_history(store: ScriptedStore) -> None:
    play = Play(store)
    trajectory = play.begin(1)
    play.turn(trajectory, 3)
    with ScriptedStore.open(crash(store), resume=True) as again:
        (group,) = open_groups(again.restore())
    (found,) = group.open_rollouts
    recorded = RecordedStep(action=ACT, answer=answered("(3,)").fingerprint)
    assert found.history(TASK) == ActionHistory(
        task=TASK, sample=1, seed=1, opening=fingerprint(QUESTION), steps=(recorded,)
    )


def test_a_fork_shares_its_parents_turns_and_world(store: ScriptedStore) -> None:
    """Nodes, exchanges and history, also of a fork of a fork, and after the parent went on."""
    play = Play(store, size=3)
    root = play.begin(0)
    play.turn(root, 3)
    branch = play.at[root]
    play.turn(root, 4)
    why = {"entropy": 1.5, "p": 0.25}
    child = store.fork(root, play.tree, branch, sample=1, seed=7, strategy="native", why=why)
    play.at[child] = branch
    play.turn(child, 6)
    grandchild = store.fork(
        child, play.tree, play.at[child], sample=2, seed=8, strategy="copy", why={}
    )
    play.end(root)
    with ScriptedStore.open(crash(store), resume=True) as again:
        (group,) = open_groups(again.restore())
        _, one, other = group.rollouts.values()
        assert [t.id for t in group.open_rollouts] == [child, grandchild]
        assert one.fork is not None
        assert (one.fork.parent, one.fork.why, one.fork.strategy) == (root, why, "native")
        assert (
            group.tree.tokens(one.at or 0) == (1, 2, 3, 9, 6, 9) == group.tree.tokens(other.at or 0)
        )
        assert [len(t.exchanges) for t in (one, other)] == [3, 3]
        assert (one.own_turns, other.own_turns) == (1, 0)
        # The world was reset once, for the root: with its seed and as its sample.
        history = one.history(TASK)
        assert history is not None
        assert (history.seed, history.sample, len(history.steps)) == (0, 0, 2)
        assert history == other.history(TASK)
        assert not other.mid_turn
        # It grows on from there, in the restored tree.
        node = group.tree.add(sampled(other.at or 0, 5, 5))
        again.turn(other.id, group.tree, node, answered("more"))
        again.close()
    with StoreReader(store.folder) as reader:
        back = reader.group(group.id)
        assert back.tree.nodes == group.tree.nodes
        assert back.rollouts[grandchild].own_turns == 1


def test_a_fork_inside_a_turn_is_in_the_middle_of_one(store: ScriptedStore) -> None:
    play = Play(store)
    root = play.begin(0)
    inside = play.tree.add(sampled(play.at[root], 3))
    rest = play.tree.add(sampled(inside, 4))
    store.turn(root, play.tree, play.tree.add(tool(rest, 9)), answered("x"))
    branch = store.fork(root, play.tree, inside, sample=1, seed=1, strategy="replay")
    with ScriptedStore.open(crash(store), resume=True) as again:
        (group,) = open_groups(again.restore())
    child = group.rollouts[branch]
    assert (child.mid_turn, child.turns, child.at) == (True, 0, inside)
    history = child.history(TASK)
    assert history is not None
    assert history.steps == ()


def test_a_parked_turn_goes_on_from_its_last_token(store: ScriptedStore) -> None:
    play = Play(store)
    trajectory = play.begin(0)
    play.turn(trajectory, 3)
    part = play.tree.add(sampled(play.at[trajectory], 4, 5))
    store.part(trajectory, play.tree, part)
    with ScriptedStore.open(crash(store), resume=True) as again:
        (group,) = open_groups(again.restore())
        (found,) = group.open_rollouts
        assert found.mid_turn
        assert group.tree.tokens(found.at or 0)[-2:] == (4, 5)
        assert found.turns == 1
        rest = group.tree.add(sampled(found.at or 0, 6))
        again.turn(found.id, group.tree, rest, answered("done"))
        again.close()
    with StoreReader(store.folder) as reader:
        (whole,) = reader.group(0).rollouts.values()
    assert (whole.mid_turn, whole.turns) == (False, 2)


def test_an_ended_trajectory_comes_back_with_its_leaf(store: ScriptedStore) -> None:
    play = Play(store)
    leaf = play.end(play.begin(0))
    failed = play.begin(1)
    broken = Leaf(node=None, outcome=Failed("env", "\ud800 broke"), sample=1)
    store.finish(failed, play.tree, broken)
    store.group_complete(play.group)
    with ScriptedStore.open(crash(store), resume=True) as again:
        state = again.restore()
    (group,) = complete_groups(state)
    assert [one.leaf for one in group.rollouts.values()] == [leaf, broken]
    for tree in (group.tree, play.tree):
        tree.end(leaf)
        tree.end(broken)
    assert group.tree.trajectories() == play.tree.trajectories()
    assert open_groups(state) == []


def test_a_rerun_is_counted_and_takes_its_place(store: ScriptedStore) -> None:
    play = Play(store)
    trajectory = play.begin(0)
    play.turn(trajectory, 3)
    play.turn(trajectory, 4)
    with ScriptedStore.open(crash(store), resume=True) as again:
        again.restore()
        again.abandon(trajectory, "rerun")
        anew = again.begin(0, sample=0, seed=0, attempt=1)
        again.close()
    with StoreReader(store.folder) as reader:
        old, new = reader.group(0).rollouts.values()
        assert (old.status, old.turns) == ("abandoned", 2)
        assert (new.id, new.started.attempt) == (anew, 1)
        assert reader.counts()["trajectories/abandoned"] == 1


def test_a_checkpoint_decides_what_is_trained(store: ScriptedStore) -> None:
    """Three groups: in the checkpoint, trained after it, and waiting."""
    one, two, three = (Play(store, order=n).complete(version=n) for n in range(3))
    store.trained([one], step=1)
    position = store.checkpoint(1)
    store.trained([two], step=2)
    with ScriptedStore.open(crash(store), resume=True) as again:
        state = again.restore(position=position, step=1)
        assert [group.id for group in complete_groups(state)] == [two, three]
        assert [group.id for group in state.groups.values() if group.waits_for > 1] == [three]
        with pytest.raises(EventError, match=r"group 0 is not open: .* was trained or dropped"):
            again.trained([one], step=2)
        again.trained([two, three], step=2)
        with pytest.raises(EventError, match=r"group 1 is not open: .* was trained or dropped"):
            again.trained([two], step=3)
        later = again.checkpoint(2)
        again.close()
    with ScriptedStore.open(store.folder, resume=True) as again:
        assert again.restore(position=later, step=2).groups == {}


def test_without_a_checkpoint_everything_is_trained_anew(store: ScriptedStore) -> None:
    store.trained([Play(store).complete()], step=1)
    with ScriptedStore.open(crash(store), resume=True) as again:
        state = again.restore()
    assert [group.id for group in complete_groups(state)] == [0]


def test_a_checkpoint_that_had_been_taken_away_comes_back_with_its_groups(
    store: ScriptedStore,
) -> None:
    """Resumed from the older one first, then from the newer one: each has its own weights."""
    one, two = (Play(store, order=n).complete() for n in range(2))
    store.trained([one], step=1)
    older = store.checkpoint(1)
    store.trained([two], step=2)
    newer = store.checkpoint(2)
    crash(store)
    for position, step, waiting in [(older, 1, [two]), (newer, 2, []), (0, 0, [one, two])]:
        with ScriptedStore.open(store.folder, resume=True) as again:
            state = again.restore(position=position, step=step)
            assert [group.id for group in complete_groups(state)] == waiting
            if not waiting:
                with pytest.raises(EventError, match="group 1 is not open"):
                    again.trained([two], step=3)


def test_a_checkpoint_beyond_the_log_is_refused(store: ScriptedStore) -> None:
    with (
        ScriptedStore.open(crash(store), resume=True) as again,
        pytest.raises(StoreError, match=r"position 9, .*holds no record; .*policy\.path"),
    ):
        again.restore(position=9, step=3)
    with ScriptedStore.open(store.folder, resume=True) as again:
        Play(again).begin(0)
        end = again.position
    with (
        ScriptedStore.open(store.folder, resume=True) as again,
        pytest.raises(StoreError, match=rf"position 9, .*ends at {end}: .*Remove that checkpoint"),
    ):
        again.restore(position=9, step=3)


@pytest.mark.parametrize("is_moved", [True, False])
def test_no_checkpoint_refers_to_a_log_that_was_removed(
    store: ScriptedStore, tmp_path: Path, *, is_moved: bool
) -> None:
    """Mutant: the log is written on, and nobody reads it again."""
    Play(store).begin(0)
    store.checkpoint(1)
    (segment,) = (store.folder / "segments").iterdir()
    if is_moved:
        segment.rename(tmp_path / "elsewhere")
    else:
        segment.unlink()
    with pytest.raises(StoreError, match=r"was removed or moved .*put it back and resume"):
        store.checkpoint(2)
    if is_moved:
        (tmp_path / "elsewhere").rename(segment)
        store.checkpoint(2)


def test_a_dropped_group_stays_dropped(store: ScriptedStore) -> None:
    play = Play(store)
    play.begin(0)
    store.drop(play.group, "zero variance")
    done = Play(store, order=1).complete()
    store.drop(done, "stale")
    with pytest.raises(EventError, match=r"group 1 is not open: .* was trained or dropped"):
        store.drop(done, "again")
    with ScriptedStore.open(crash(store), resume=True) as again:
        state = again.restore()
    assert (state.groups, state.task_position) == ({}, 2)


Wrong = Callable[[ScriptedStore, Play, int], object]

WRONG: dict[str, Wrong] = {
    r"trajectories \[0\] of group 0 are open": lambda s, p, t: s.group_complete(p.group),
    "group 0 is open, but only a complete group trains": lambda s, p, t: s.trained(
        [p.group], step=1
    ),
    "group 4 is not open: it was never opened": lambda s, p, t: s.trained([4], step=1),
    "contain a duplicate": lambda s, p, t: s.trained([1, 1], step=1),
    "group 5 is not open: it was never opened": lambda s, p, t: s.begin(5, sample=0, seed=0),
    "trajectory 7 is not of its group": lambda s, p, t: s.log.emit(
        TurnExtended(trajectory=7, group=p.group, at=0)
    ),
    "trajectory 0 is ended, but only an open trajectory can continue": lambda s, p, t: [
        p.end(t),
        p.end(t),
    ],
    "fork a trajectory where it has been": lambda s, p, t: s.fork(
        s.begin(0, sample=1, seed=1), p.tree, 0, sample=2, seed=2, strategy="copy"
    ),
    "token id or version of a TurnExtended is out of range": lambda s, p, t: s.part(
        t, p.tree, p.tree.add(tool(p.at[t], -1))
    ),
}


@pytest.mark.parametrize("message", WRONG)
def test_what_contradicts_the_record_is_refused(store: ScriptedStore, message: str) -> None:
    play = Play(store)
    trajectory = play.begin(0)
    with pytest.raises((EventError, ValueError), match=message):
        WRONG[message](store, play, trajectory)
    play = Play(store, order=1)
    play.turn(play.begin(0), 3)  # and nothing is broken by it
    with ScriptedStore.open(crash(store), resume=True) as again:
        _, group = open_groups(again.restore())
    assert [t.turns for t in group.open_rollouts] == [1]


def test_a_second_writer_is_refused_and_a_reader_is_not(store: ScriptedStore) -> None:
    play = Play(store)
    trajectory = play.begin(0)
    with pytest.raises(
        ConfigError, match=f"is being written by process {os.getpid()}.*StoreReader"
    ):
        ScriptedStore.open(store.folder, resume=True)
    with StoreReader(store.folder) as reader:
        assert reader.groups("open") == [0] == reader.groups()
        for turn in range(3):
            play.turn(trajectory, turn)
            assert [t.turns for t in reader.group(0).open_rollouts] == [turn + 1]
        seen = list(reader.events())
        assert [sequence for sequence, _ in seen] == list(range(store.position))
        assert isinstance(seen[0][1], GroupOpened)
        play.end(trajectory)
        store.group_complete(play.group)
        more = list(reader.events(after=seen[-1][0]))
        assert [sequence for sequence, _ in more] == list(range(len(seen), store.position))
        assert reader.state(0) == "complete"
    with pytest.raises(StoreError, match="holds no store"):
        StoreReader(store.folder / "elsewhere")


def test_a_new_run_does_not_write_over_an_old_one(store: ScriptedStore) -> None:
    Play(store)
    with pytest.raises(ConfigError, match="holds the record of a run"):
        ScriptedStore.open(crash(store))
    with ScriptedStore.open(store.folder, resume=True) as again:
        with pytest.raises(StoreError, match="call restore before"):
            Play(again)
        again.restore()
        Play(again)


def test_a_failed_opening_lets_go_of_the_lock(store: ScriptedStore) -> None:
    Play(store)
    file = crash(store) / "segments" / "00000000.segment"
    file.unlink()
    for _ in range(2):
        with pytest.raises(DamagedStore, match="lacks segment 00000000"):
            ScriptedStore.open(store.folder, resume=True)


@pytest.mark.parametrize("part", [SegmentWriter, StoreIndex, DiskSyncer])
def test_a_close_that_fails_lets_go_of_the_lock(
    folder: Path, part: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk. A mutant that closes one part after the other is caught."""
    store = ScriptedStore.open(folder)
    Play(store)
    close = part.close

    def fail(closed: Any) -> None:
        close(closed)
        raise StoreError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(part, "close", fail)
        with pytest.raises(StoreError, match="No space left"):
            store.close()
    ScriptedStore.open(folder, resume=True).close()


def test_the_ledger_is_made_again_from_the_log(store: ScriptedStore) -> None:
    play = Play(store)
    play.turn(play.begin(0), 3)
    done = Play(store, order=1).complete()
    store.trained([done], step=1)
    position = store.checkpoint(1)
    counts = store.counts()
    for part in crash(store).glob("ledger.sqlite*"):
        part.unlink()
    with ScriptedStore.open(store.folder, resume=True) as again:
        assert again.counts() == counts
        state = again.restore(position=position, step=1)
    assert [*state.groups] == [play.group] == [group.id for group in open_groups(state)]


def test_a_damaged_ledger_is_not_read_and_made_again(store: ScriptedStore) -> None:
    Play(store).complete()
    file = crash(store) / "ledger.sqlite"
    data = bytearray(file.read_bytes())
    at = data.index(b"complete")
    data[at] ^= 1
    file.write_bytes(data)
    with pytest.raises(DamagedStore, match=r"ledger.sqlite is damaged: page \d+ .*rebuilt from"):
        StoreReader(store.folder)
    with ScriptedStore.open(store.folder, resume=True) as again:
        assert len(complete_groups(again.restore())) == 1
    with StoreReader(store.folder) as reader:
        assert reader.groups("complete") == [0]


@pytest.fixture
def ended(folder: Path) -> Path:
    """Return the folder of a store of three complete groups, in several segments."""
    with ScriptedStore.open(folder, StoreSettings(segment_bytes=3000)) as store:
        for order in range(3):
            Play(store, order=order).complete()
    assert len(segments(folder / "segments")) > 1
    return folder


def test_damage_in_a_group_that_is_needed_is_refused_and_can_be_cut(ended: Path) -> None:
    file = max(segments(ended / "segments").values())
    before = file.read_bytes()
    data = bytearray(before)
    data[100] ^= 4
    file.write_bytes(data)
    with (
        ScriptedStore.open(ended, resume=True) as again,
        pytest.raises(DamagedStore, match=rf"{file} is damaged at byte .*--resume --cut-damaged"),
    ):
        again.restore()
    with ScriptedStore.open(ended, resume=True, damaged="cut") as cut:
        assert cut.position > 0
        state = cut.restore()
        assert cut.torn_bytes > 0
        with pytest.raises(StoreError, match="Remove that checkpoint"):
            cut.restore(position=1000, step=5)
        known = len(complete_groups(state))
        Play(cut, order=7).complete()
    aside = [f for f in (ended / "segments").iterdir() if f.name.endswith(".damaged")]
    assert any(f.read_bytes().startswith(data) for f in aside)
    with ScriptedStore.open(ended, resume=True) as again:
        assert len(complete_groups(again.restore())) == known + 1


def test_cutting_an_undamaged_store_loses_nothing(ended: Path) -> None:
    with ScriptedStore.open(ended, resume=True, damaged="cut") as again:
        state = again.restore()
    assert (len(complete_groups(state)), again.torn_bytes) == (3, 0)


def test_a_log_that_ends_before_its_ledger_is_refused(ended: Path) -> None:
    """A power failure took what was not synced, and the ledger had reached the disk."""
    file = max(segments(ended / "segments").values())
    os.truncate(file, file.stat().st_size - 1)
    with pytest.raises(DamagedStore, match="the machine stopped before the record was on disk"):
        ScriptedStore.open(ended, resume=True)
    with ScriptedStore.open(ended, resume=True, damaged="cut") as again:
        assert len(complete_groups(again.restore())) == 2


def test_a_torn_record_before_the_end_is_damage(ended: Path) -> None:
    file = min(segments(ended / "segments").values())
    os.truncate(file, file.stat().st_size - 1)
    for part in ended.glob("ledger.sqlite*"):
        part.unlink()
    with pytest.raises(DamagedStore, match=rf"{file} is damaged"):
        ScriptedStore.open(ended, resume=True)


@pytest.mark.parametrize("at", [-3, -60])
def test_a_changed_last_record_is_damage_and_not_torn(ended: Path, at: int) -> None:
    """Also where the ledger does not know it: a killed process cuts records, and changes none."""
    file = max(segments(ended / "segments").values())
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)
    for part in ended.glob("ledger.sqlite*"):
        part.unlink()
    with pytest.raises(DamagedStore, match=rf"{file} is damaged"):
        ScriptedStore.open(ended, resume=True)
    assert file.read_bytes() == data


def test_a_missing_segment_is_refused(ended: Path) -> None:
    min(segments(ended / "segments").values()).unlink()
    with pytest.raises(DamagedStore, match="lacks segment 00000000, which was not pruned"):
        ScriptedStore.open(ended, resume=True)


def test_images_come_back_and_a_changed_one_is_refused(store: ScriptedStore) -> None:
    picture = Image(b"\x89PNG" * 1000)
    play = Play(store)
    trajectory = store.begin(play.group, sample=0, seed=0)
    prompt = Node(parent=None, source="prompt", token_ids=(1,), images=(picture, picture), turn=0)
    seen = Observation((Message("user", ("look", picture)),), tools=())
    store.turn(trajectory, play.tree, play.tree.add(prompt), EnvExchange.resetting(seen))
    files = [f for f in (crash(store) / "objects").rglob("*") if f.is_file()]
    assert {f.name for f in files} >= {picture.digest}
    with ScriptedStore.open(store.folder, resume=True) as again:
        (group,) = open_groups(again.restore())
    assert group.tree.nodes == (prompt,)
    with StoreReader(store.folder) as reader:
        (found,) = reader.group(group.id).open_rollouts
    assert found.exchanges[0].observation == seen
    (store.folder / "objects" / picture.digest[:2] / picture.digest).write_bytes(b"x")
    with (
        ScriptedStore.open(store.folder, resume=True) as again,
        pytest.raises(DamagedStore, match=picture.digest),
    ):
        again.restore()


def test_a_long_trajectory_comes_back(store: ScriptedStore) -> None:
    play = Play(store)
    trajectory = play.begin(0)
    for turn in range(200):
        play.turn(trajectory, *range(turn, turn + 2000))
    with ScriptedStore.open(crash(store), resume=True) as again:
        (group,) = open_groups(again.restore())
    assert group.tree.nodes == play.tree.nodes
    assert [t.turns for t in group.open_rollouts] == [200]


def test_pruned_groups_are_gone_and_the_rest_is_not(folder: Path) -> None:
    settings = StoreSettings(segment_bytes=2000, keep="untrained")
    with ScriptedStore.open(folder, settings) as store:
        untrained = Play(store, order=9).complete()
        groups = [Play(store, order=n).complete() for n in range(4)]
        waiting = Play(store, order=4)
        waiting.begin(0)
        store.trained(groups[:2], step=1)
        old = store.checkpoint(1)
        store.trained(groups[2:], step=2)
        assert store.prune(position=0) == 0
        count = len(segments(folder / "segments"))
        gone = store.prune(position=old)
        assert gone > 0
        assert len(segments(folder / "segments")) == count - gone
    with ScriptedStore.open(folder, settings, resume=True) as again:
        with pytest.raises(StoreError, match="were pruned; resume from a newer checkpoint"):
            again.restore(position=0, step=0)
        state = again.restore(position=old, step=1)
        assert [g.id for g in complete_groups(state)] == [untrained, *groups[2:]]
        assert [g.id for g in open_groups(state)] == [waiting.group]
        again.close()
    with StoreReader(folder) as reader:
        assert 0 < len(list(reader.events())) < again.position
    counts = again_counts(folder, settings)
    for part in folder.glob("ledger.sqlite*"):
        part.unlink()
    assert again_counts(folder, settings) == counts, "rebuilt from its copy"
    assert again_counts(folder, settings, damaged="cut") == counts
    for part in (*folder.glob("ledger.sqlite*"), *folder.glob("pruned.sqlite*")):
        part.unlink()
    with pytest.raises(DamagedStore, match=r"lacks segment 0000000\d, which was not pruned"):
        again_counts(folder, settings)


def again_counts(
    folder: Path, settings: StoreSettings, *, damaged: Damaged = "refuse"
) -> dict[str, int]:
    with ScriptedStore.open(folder, settings, resume=True, damaged=damaged) as store:
        return store.counts()


def test_everything_is_kept_unless_told(ended: Path) -> None:
    with ScriptedStore.open(ended, resume=True) as store:
        store.restore()
        store.trained([0, 1, 2], step=1)
        assert store.prune(position=store.checkpoint(1)) == 0


def test_a_write_that_was_interrupted_halfway_ends_the_writing(
    store: ScriptedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = Play(store)

    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(StoreIndex, "enter", interrupted)
        with pytest.raises(KeyboardInterrupt):
            play.begin(0)
    with pytest.raises(StoreError, match="was interrupted during a write"):
        play.begin(0)
    with ScriptedStore.open(crash(store), resume=True) as again:
        (group,) = open_groups(again.restore())
    assert len(group.rollouts) == 1


async def test_power_waits_for_the_disk_and_shares_a_sync(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    written = threading.Event()
    fsync = os.fsync

    def watched(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        assert written.wait(60.0)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    with ScriptedStore.open(folder, StoreSettings(durable="power")) as store:
        play = Play(store)
        trajectory = play.begin(0)
        for turn in range(50):
            play.turn(trajectory, turn)
        written.set()
        await store.wait_settled()
        log = [name for name in synced if name.endswith(".segment")]
        assert 1 <= len(log) <= 3
        assert str(folder / "segments") in synced
        await store.wait_settled()


async def test_who_stops_waiting_for_the_disk_takes_nobody_along(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, may_end = threading.Event(), threading.Event()
    fsync = os.fsync

    def slowly(descriptor: int) -> None:
        began.set()
        assert may_end.wait(60.0)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", slowly)
    with ScriptedStore.open(folder, StoreSettings(durable="power")) as store:
        Play(store).begin(0)
        gone, stays = [asyncio.create_task(store.wait_settled()) for _ in range(2)]
        assert await asyncio.to_thread(began.wait, 60.0)
        gone.cancel()
        await asyncio.wait([gone])
        may_end.set()
        await asyncio.wait_for(stays, 60.0)
        Play(store).begin(1)
        await asyncio.wait_for(store.wait_settled(), 60.0)


@pytest.mark.parametrize("durable", ["process", "interval"])
async def test_others_do_not_wait_for_the_disk(
    folder: Path, monkeypatch: pytest.MonkeyPatch, durable: str
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    settings = StoreSettings(durable="process" if durable == "process" else "interval")
    with ScriptedStore.open(folder, settings) as store:
        Play(store).begin(0)
        await store.wait_settled()
        if durable == "process":
            await asyncio.sleep(0.1)
            assert synced == []
        else:
            assert await asyncio.to_thread(comes_true, lambda: bool(synced))
        before = len(synced)
        store.checkpoint(1)
        assert len(synced) > before


def test_a_failed_sync_stops_the_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it lost is not known: every later write is refused, and closing says so too."""

    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    store = ScriptedStore.open(folder)
    Play(store)
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(
        StoreError, match=r"could not be synced: Input/output error.*Check the disk"
    ):
        store.checkpoint(1)
    with pytest.raises(StoreError, match="could not be synced"):
        Play(store)
    with pytest.raises(StoreError, match="could not be synced"):
        store.close()
    monkeypatch.undo()
    with ScriptedStore.open(folder, resume=True) as again:
        assert len(open_groups(again.restore())) == 1


def test_a_syncer_bounds_what_a_power_failure_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentrl.store.disk_sync.EVERY_WRITES", 10)
    rounds: list[int] = []
    syncer = DiskSyncer(linger_s=None, after=lambda: rounds.append(1))
    for _ in range(25):
        syncer.note(tmp_path)
    assert comes_true(lambda: bool(rounds))
    syncer.close()
    syncer.close()


@pytest.mark.parametrize("place", [0, 16, 20, 24, HEAD_BYTES - 1])
def test_a_damaged_head_is_refused_though_the_ledger_knows_the_records(
    ended: Path, place: int
) -> None:
    """Kills: a head that is read only where the ledger is made again."""
    log = segments(ended / "segments")[0]
    data = bytearray(log.read_bytes())
    data[place] ^= 1
    log.write_bytes(data)
    with pytest.raises(DamagedStore, match="its head does not match its checksum"):
        ScriptedStore.open(ended, resume=True)
    assert log.read_bytes() == data


@pytest.mark.parametrize("form", [1, 3])
def test_a_store_of_another_format_is_refused_by_name(ended: Path, form: int) -> None:
    """Older formats lack what a resume needs: nothing is guessed. The ledger is made again."""
    file = ended / "ledger.sqlite"
    with closing(sqlite3.connect(file)) as base:
        base.execute(f"PRAGMA user_version = {form}")
    PageChecks.from_file(file).write(file)
    said = f"has format {form}, but this version reads 4; use the version of agentrl that wrote it"
    with pytest.raises(StoreError, match=f"ledger.sqlite {said}"):
        StoreReader(ended)
    old = file.read_bytes(), file.with_name("ledger.sqlite.check").read_bytes()
    ScriptedStore.open(ended, resume=True).close()
    with closing(sqlite3.connect(file)) as base:
        assert base.execute("PRAGMA user_version").fetchone() == (4,), "the log is of this version"
    file.write_bytes(old[0])
    file.with_name("ledger.sqlite.check").write_bytes(old[1])
    log = segments(ended / "segments")[0]
    data = bytearray(log.read_bytes())
    data[16:20] = struct.pack("<I", form)
    data[HEAD_BYTES - 4 : HEAD_BYTES] = struct.pack("<I", zlib.crc32(data[: HEAD_BYTES - 4]))
    log.write_bytes(data)
    damaged: Damaged
    for damaged in ("refuse", "cut"):
        with pytest.raises(StoreError, match=f"segment {said}"):
            ScriptedStore.open(ended, resume=True, damaged=damaged)
    assert file.read_bytes() == old[0], "who wrote it finds it as it was"
