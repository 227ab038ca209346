"""What recording a turn costs, by durability and by tokens, and how many bytes go to the store in a
second of it. Prints a Markdown table; a minute.

    python benchmarks/store.py [--folder DIR]
    python benchmarks/store.py --trajectories 100000 [--read]

The disk decides what `power` costs: pass a folder on the one that runs are kept on. With
`--trajectories` a store of so many is written, pruned as it goes, by a process that is then killed,
and opened again; with `--read` a reader in that process looks at it all the while.
"""

import argparse
import os
import signal
import tempfile
import time
from dataclasses import dataclass
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median, quantiles

from agentrl.env import Action, Observation
from agentrl.events.kinds import (
    CheckpointStarted,
    EnvExchange,
    GroupOpened,
    GroupRequest,
    GroupsTrained,
)
from agentrl.events.log import EventLog
from agentrl.events.state import GroupState
from agentrl.message import Message, ToolCall
from agentrl.store.disk_sync import Durable
from agentrl.store.reader import StoreReader
from agentrl.store.settings import StoreSettings
from agentrl.store.writer import StoreWriter
from agentrl.task import Task
from agentrl.trajectory import Finished, Leaf, Node

TURNS = 1000
TRAJECTORIES = 10
GROUP_SIZE, STEP_GROUPS, CHECKPOINT_STEPS = 8, 16, 10
SEGMENT_BYTES = 4 * 2**20
MODES: tuple[Durable, ...] = ("process", "interval", "power")


@dataclass(frozen=True, slots=True)
class Written:
    """How the writing of a store went."""

    records: int
    seconds: float
    logged_bytes: int
    """Most there was in the ledger's write-ahead log."""
    pruned: int
    prune_s: float
    """Longest time that pruning took."""


def exchange() -> EnvExchange:
    """Return a turn of a usual size: 600 characters of code, 300 of output."""
    action = Action("thinking " * 30, (ToolCall("call_0", "python", {"code": "print(1)\n" * 40}),))
    seen = Observation((Message("tool", "out" * 100, tool_call_id="call_0", name="python"),))
    return EnvExchange.stepping(action, (seen, 0.0, False, False, {}))


def costs_us(store: StoreWriter, tokens: int) -> list[float]:
    """Return what each of `TURNS` turns took, and on `power` its way to the disk."""
    log = EventLog(store)
    state = log.open_group(0, GroupRequest(task=Task(prompt="q")), size=TRAJECTORIES, step=0)
    tree = state.tree
    root = tree.add(Node(parent=None, source="prompt", token_ids=tuple(range(100)), turn=0))
    rollouts = [log.start_rollout(0, sample=n, seed=n, version=0) for n in range(TRAJECTORIES)]
    at = [root] * TRAJECTORIES
    spent: list[float] = []
    for turn in range(TURNS):
        which = turn % TRAJECTORIES
        sampled = Node(
            parent=at[which],
            source="sampled",
            token_ids=tuple(range(tokens)),
            logprobs=(-0.123456,) * tokens,
            versions=(3,) * tokens,
            turn=turn,
        )
        answer = Node(parent=tree.add(sampled), source="tool", token_ids=(7,) * 100, turn=turn)
        at[which] = tree.add(answer)
        done = exchange()
        began = time.perf_counter()
        rollouts[which].complete_turn(at[which], done)
        if store.settings.durable == "power":
            store.sync()
        spent.append((time.perf_counter() - began) * 1e6)
    return spent


def play_group(log: EventLog, order: int) -> int:
    """Record a group of `GROUP_SIZE` trajectories of one turn, to its end; return its id."""
    task = Task(prompt=f"p{order}", id=f"task-{order}", split="train")
    step = order // STEP_GROUPS
    state = open_group(log, task, order=order, size=GROUP_SIZE, step=step)
    tree = state.tree
    rollouts = [log.start_rollout(state.id, sample=n, seed=n, version=0) for n in range(GROUP_SIZE)]
    root = tree.add(Node(parent=None, source="prompt", token_ids=tuple(range(100)), turn=0))
    seen = EnvExchange.resetting(Observation((Message("user", "x" * 100),), tools=()))
    for rollout in rollouts:
        rollout.complete_turn(root, seen)
    for sample, rollout in enumerate(rollouts):
        sampled = Node(
            parent=root,
            source="sampled",
            token_ids=tuple(range(64)),
            logprobs=(-0.123456,) * 64,
            versions=(step,) * 64,
            turn=0,
        )
        leaf = Leaf(
            node=tree.add(sampled), outcome=Finished(1.0), sample=sample, turn_rewards=(1.0,)
        )
        rollout.finish(leaf)
    log.complete_group(state.id)
    return state.id


def open_group(log: EventLog, task: Task, *, order: int, size: int, step: int) -> GroupState:
    """Open the next group, whose task is the stream's number `order`."""
    group = log.state.next_group
    log.emit(
        GroupOpened(
            group=group,
            request=GroupRequest(task=task),
            order=order,
            seed=1,
            size=size,
            step=step,
        )
    )
    return log.state.groups[group]


def checkpoint(log: EventLog, store: StoreWriter, *, step: int) -> int:
    """Bring all to the disk for a checkpoint; return the position that it would hold."""
    log.emit(CheckpointStarted(step=step))
    store.sync()
    return store.position


def fill(folder: Path, trajectories: int, *, reads: bool) -> None:
    """Have a process write a store and die, and print how large its ledger's log was and how long
    opening took."""
    ours, theirs = Pipe(duplex=False)
    writer = get_context("fork").Process(
        target=write, args=(folder, trajectories), kwargs={"reads": reads, "told": theirs}
    )
    writer.start()
    theirs.close()
    told: Written = ours.recv()
    writer.join()
    assert writer.exitcode == -signal.SIGKILL
    settings = StoreSettings(keep="untrained", segment_bytes=SEGMENT_BYTES)
    began = time.perf_counter()
    with StoreWriter.open(folder, settings, resume=True) as store:
        opened_s = time.perf_counter() - began
        counts = store.counts()
    ledger_bytes = (folder / "ledger.sqlite").stat().st_size
    (folder / "ledger.sqlite.check").unlink()
    began = time.perf_counter()
    with StoreWriter.open(folder, settings, resume=True) as store:
        remade_s = time.perf_counter() - began
        assert store.counts() == counts
    each_us = 1e6 * told.seconds / told.records
    print(f"{told.records} records in {told.seconds:.0f} s, {each_us:.0f} us each")
    print(f"ledger {ledger_bytes / 1e6:.1f} MB")
    print(f"write-ahead log at most {told.logged_bytes / 1e6:.1f} MB")
    print(f"pruned {told.pruned} segments, {1e3 * told.prune_s:.0f} ms at most")
    print(
        f"opened after a kill in {opened_s:.2f} s; with the ledger made again in {remade_s:.2f} s"
    )


def write(folder: Path, trajectories: int, *, reads: bool, told: Connection) -> None:
    """Write a store, tell how it went, and be killed."""
    settings = StoreSettings(keep="untrained", segment_bytes=SEGMENT_BYTES)
    log = folder / "ledger.sqlite-wal"
    logged = pruned = position = 0
    longest_s = 0.0
    began = time.perf_counter()
    with StoreWriter.open(folder, settings) as store:
        events = EventLog(store)
        reader = StoreReader(folder) if reads else None
        groups: list[int] = []
        for order in range(trajectories // GROUP_SIZE):
            groups.append(play_group(events, order))
            if reader is not None:
                reader.trajectories(order)
            if len(groups) == STEP_GROUPS:
                step = order // STEP_GROUPS + 1
                events.emit(GroupsTrained(groups=tuple(groups), step=step))
                groups.clear()
                if step % CHECKPOINT_STEPS == 0:
                    before, position = position, checkpoint(events, store, step=step)
                    asked = time.perf_counter()
                    pruned += store.prune(position=before)
                    longest_s = max(longest_s, time.perf_counter() - asked)
            logged = max(logged, log.stat().st_size if log.exists() else 0)
        seconds = time.perf_counter() - began
        told.send(Written(store.position, seconds, logged, pruned, longest_s))
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="where to write; the temporary folder if none")
    parser.add_argument("--trajectories", type=int, help="write a store of so many instead")
    parser.add_argument("--read", action="store_true", help="with a reader beside the writer")
    given = parser.parse_args()
    folder: Path | None = given.folder
    if given.trajectories:
        with tempfile.TemporaryDirectory(dir=folder) as place:
            fill(Path(place) / "store", given.trajectories, reads=given.read)
        return
    print("| durable | sampled tokens | median µs | 99 % µs | MB/s |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for durable in MODES:
        for tokens in (64, 256, 2048):
            with (
                tempfile.TemporaryDirectory(dir=folder) as place,
                StoreWriter.open(Path(place) / "store", StoreSettings(durable=durable)) as store,
            ):
                spent = costs_us(store, tokens)
                files = [file for file in Path(place).rglob("*") if file.is_file()]
                rate = sum(file.stat().st_size for file in files) / sum(spent)
            slow = quantiles(spent, n=100)[-1]
            print(f"| {durable} | {tokens} | {median(spent):.0f} | {slow:.0f} | {rate:.0f} |")


if __name__ == "__main__":
    main()
