"""What recording a turn costs, by durability and by tokens. Prints a Markdown table; a minute.

    python benchmarks/store.py [--folder DIR]
    python benchmarks/store.py --trajectories 100000 [--read]

The disk decides what `power` costs: pass a folder on the one that runs are kept on. With
`--trajectories` a store of so many is written, pruned as it goes, and opened again; with `--read` a
reader in this process looks at it all the while.
"""

import argparse
import shutil
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles

from agentrl.env import Action, Observation
from agentrl.message import Message, ToolCall
from agentrl.store.event import Exchange
from agentrl.store.reader import StoreReader
from agentrl.store.settings import StoreSettings
from agentrl.store.store import Store
from agentrl.store.syncer import Durable
from agentrl.task import Task
from agentrl.trajectory import Finished, Leaf, Node, Tree

TURNS = 1000
TRAJECTORIES = 10
GROUP_SIZE, STEP_GROUPS, CHECKPOINT_STEPS = 8, 16, 10
MODES: tuple[Durable, ...] = ("process", "interval", "power")


def exchange() -> Exchange:
    """Return a turn of a usual size: 600 characters of code, 300 of output."""
    action = Action("thinking " * 30, (ToolCall("call_0", "python", {"code": "print(1)\n" * 40}),))
    seen = Observation((Message("tool", "out" * 100, tool_call_id="call_0", name="python"),))
    return Exchange.stepping(action, (seen, 0.0, False, False, {}))


def costs_us(store: Store, tokens: int) -> list[float]:
    """Return what each of `TURNS` turns took, and on `power` its way to the disk."""
    task = Task(prompt="q")
    tree = Tree(task)
    group = store.open_group(task, order=0, seed=0, size=TRAJECTORIES, step=0)
    root = tree.add(Node(parent=None, source="prompt", token_ids=tuple(range(100)), turn=0))
    ids = [store.begin(group, sample=n, seed=n) for n in range(TRAJECTORIES)]
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
        store.turn(ids[which], tree, at[which], done)
        if store.settings.durable == "power":
            store.sync()
        spent.append((time.perf_counter() - began) * 1e6)
    return spent


def play_group(store: Store, order: int) -> int:
    """Record a group of `GROUP_SIZE` trajectories of one turn, to its end; return its id."""
    task = Task(prompt=f"p{order}", id=f"task-{order}", split="train")
    step = order // STEP_GROUPS
    group = store.open_group(task, order=order, seed=1, size=GROUP_SIZE, step=step)
    tree = Tree(task)
    ids = [store.begin(group, sample=n, seed=n) for n in range(GROUP_SIZE)]
    root = tree.add(Node(parent=None, source="prompt", token_ids=tuple(range(100)), turn=0))
    seen = Exchange.resetting(Observation((Message("user", "x" * 100),), tools=()))
    for id in ids:
        store.turn(id, tree, root, seen)
    for sample, id in enumerate(ids):
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
        store.finished(id, tree, leaf)
    store.group_complete(group)
    return group


def fill(folder: Path, trajectories: int, *, reads: bool) -> None:
    """Write a store, and print how large its ledger's log was and how long opening took."""
    settings = StoreSettings(keep="untrained", segment_bytes=4 * 2**20)
    log = folder / "ledger.sqlite-wal"
    logged = pruned = position = 0
    prune_s: list[float] = []
    began = time.perf_counter()
    with Store.open(folder, settings) as store:
        reader = StoreReader(folder) if reads else None
        groups: list[int] = []
        for order in range(trajectories // GROUP_SIZE):
            groups.append(play_group(store, order))
            if reader is not None:
                reader.trajectories(order)
            if len(groups) == STEP_GROUPS:
                step = order // STEP_GROUPS + 1
                store.trained(groups, step=step)
                groups.clear()
                if step % CHECKPOINT_STEPS == 0:
                    before, position = position, store.checkpoint(step)
                    asked = time.perf_counter()
                    pruned += store.prune(position=before)
                    prune_s.append(time.perf_counter() - asked)
            logged = max(logged, log.stat().st_size if log.exists() else 0)
        if reader is not None:
            reader.close()
        written_s = time.perf_counter() - began
        records = store.position
        # As a killed process leaves it.
        killed = folder.with_name("killed")
        shutil.copytree(folder, killed, ignore=shutil.ignore_patterns("*-shm"))
    began = time.perf_counter()
    with Store.open(killed, settings, resume=True) as store:
        opened_s = time.perf_counter() - began
        counts = store.counts()
    (killed / "ledger.sqlite.check").unlink()
    began = time.perf_counter()
    with Store.open(killed, settings, resume=True) as store:
        remade_s = time.perf_counter() - began
        assert store.counts() == counts
    print(f"{records} records in {written_s:.0f} s, {1e6 * written_s / records:.0f} us each")
    print(f"ledger {(folder / 'ledger.sqlite').stat().st_size / 1e6:.1f} MB")
    print(f"write-ahead log at most {logged / 1e6:.1f} MB")
    print(f"pruned {pruned} segments, {1e3 * max(prune_s, default=0):.0f} ms at most")
    print(
        f"opened after a kill in {opened_s:.2f} s; with the ledger made again in {remade_s:.2f} s"
    )


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
    print("| durable | sampled tokens | median µs | 99 % µs |\n| --- | ---: | ---: | ---: |")
    for durable in MODES:
        for tokens in (64, 256, 2048):
            with (
                tempfile.TemporaryDirectory(dir=folder) as place,
                Store.open(Path(place) / "store", StoreSettings(durable=durable)) as store,
            ):
                spent = costs_us(store, tokens)
            slow = quantiles(spent, n=100)[-1]
            print(f"| {durable} | {tokens} | {median(spent):.0f} | {slow:.0f} |")


if __name__ == "__main__":
    main()
