"""Stores whose files were damaged: what a resumed run gets, and whether the advice ends the matter.

    python benchmarks/damage.py --damages 2000 --seed 1

A store is copied as a killed process leaves it; in one file a bit is flipped, a block zeroed, or
the end cut off; then it is resumed. The result must be the same as without the damage, or a
`DamagedStore`. After a refusal `--cut-damaged` must open it, or say that it cannot; after that it
must open without. Exits with 1 if any result is different, or any error another one.
"""

import argparse
import random
import shutil
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from agentrl.env import Observation
from agentrl.events.kinds import EnvExchange, GroupsTrained
from agentrl.events.log import EventLog
from agentrl.events.state import RunState
from agentrl.message import Image, Message
from agentrl.store.errors import DamagedStore, StoreError
from agentrl.store.reader import StoreReader
from agentrl.store.settings import StoreSettings
from agentrl.store.writer import StoreWriter
from agentrl.task import Task
from agentrl.trajectory import Finished, Leaf, Node
from benchmarks.store import checkpoint, open_group

GROUPS, TRAINED, CHECKPOINT_EVERY = 24, 18, 6
BLOCK_BYTES = 512


@dataclass(frozen=True, slots=True)
class MadeStore:
    """A store as a killed process leaves it, and its last checkpoint."""

    folder: Path
    settings: StoreSettings
    position: int
    step: int
    before: int
    """Position of the checkpoint before the last."""


def make_store(folder: Path, *, prunes: bool) -> MadeStore:
    """Make a store with groups that are trained, complete and open, and images."""
    live = folder / "live"
    settings = StoreSettings(segment_bytes=2_000, keep="untrained" if prunes else "all")
    store = StoreWriter.open(live, settings)
    log = EventLog(store)
    position = before = 0
    for order in range(GROUPS):
        group = _play(log, order)
        if order < TRAINED:
            log.emit(GroupsTrained(groups=(group,), step=order + 1))
        if order < TRAINED and (order + 1) % CHECKPOINT_EVERY == 0:
            before, position = position, checkpoint(log, store, step=order + 1)
            store.prune(position=before)
    killed = folder / "killed"
    shutil.copytree(live, killed, ignore=shutil.ignore_patterns("*-shm"))
    store.close()
    return MadeStore(killed, settings, position, TRAINED, before)


def _play(log: EventLog, order: int) -> int:
    task = Task(prompt=f"p{order}", id=f"task-{order}", split="train")
    group = open_group(log, task, order=order, size=2, step=order)
    image = Image(b"\x89PNG" + bytes([order]) * 300)
    prompt = Node(
        parent=None,
        source="prompt",
        token_ids=tuple(range(20)),
        turn=0,
        images=(image,),
        image_spans=((2, 4),),
    )
    at = group.tree.add(prompt)
    seen = Observation((Message("user", ("look", image)),), tools=())
    for sample in range(2):
        rollout = log.start_rollout(group.id, sample=sample, seed=sample, version=0)
        rollout.complete_turn(at, EnvExchange.resetting(seen))
        if order == GROUPS - 1 and sample == 1:
            return group.id  # left open
        sampled = Node(
            parent=at, source="sampled", token_ids=(3,), logprobs=(-1.0,), versions=(order,), turn=0
        )
        node = group.tree.add(sampled)
        leaf = Leaf(node=node, outcome=Finished(0.5), sample=sample, turn_rewards=(0.5,))
        rollout.finish(leaf)
    log.complete_group(group.id)
    return group.id


def resume(made: MadeStore, *, cuts: bool = False, any_checkpoint: bool = False) -> str:
    """Resume a store and return all that comes back of it.

    With `any_checkpoint` those that are refused are removed, as the advice is.
    """
    damaged = "cut" if cuts else "refuse"
    checkpoints = [(made.position, made.step)]
    if any_checkpoint:
        checkpoints += [(made.before, made.step - CHECKPOINT_EVERY), (0, 0)]
    with StoreWriter.open(made.folder, made.settings, resume=True, damaged=damaged) as store:
        state = _restored(store, checkpoints)
        parts: list[object] = [state.task_position, state.next_group, state.next_rollout]
        parts += [state.requeued, store.counts()]
        for group in state.groups.values():
            parts += [group.opened, group.size, group.status, group.rollouts, group.later]
            parts += [group.notes, group.tree.nodes, sorted(group.told)]
    with StoreReader(made.folder) as reader:
        groups = reader.groups()
        # With what was seen, which a run does not need to go on.
        parts += [reader.group(group).rollouts for group in state.groups]
        parts += [reader.facts(), reader.outcomes(), reader.group_rewards(), reader.newest]
        parts += [reader.trajectories(group) for group in groups]
    return repr(parts)


def _restored(store: StoreWriter, checkpoints: list[tuple[int, int]]) -> RunState:
    (position, step), *older = checkpoints
    try:
        return store.restore(position=position, step=step)
    except DamagedStore:
        raise
    except StoreError:
        if not older:
            raise
        return _restored(store, older)


def damage(folder: Path, draw: random.Random) -> str:
    """Damage one file of a store; return what was done."""
    files = [f for f in sorted(folder.rglob("*")) if f.is_file() and f.stat().st_size]
    kinds = {"segments": 0.35, "objects": 0.15}
    by_kind: dict[str, list[Path]] = {"segments": [], "objects": [], "ledger": []}
    for file in files:
        name = file.relative_to(folder).parts[0]
        by_kind[name if name in kinds else "ledger"].append(file)
    kind = draw.choices([*by_kind], weights=[0.35, 0.15, 0.5])[0]
    file = draw.choice(by_kind[kind])
    data = bytearray(file.read_bytes())
    at = draw.randrange(len(data))
    how = draw.choice(["flip", "flip", "zero", "cut"])
    if how == "flip":
        data[at] ^= 1 << draw.randrange(8)
    elif how == "zero":
        begin = at - at % BLOCK_BYTES
        end = min(len(data), begin + draw.choice([1, 8]) * BLOCK_BYTES)
        data[begin:end] = bytes(end - begin)
    else:
        del data[at:]
    file.write_bytes(data)
    return f"{how} {file.relative_to(folder)} at {at}"


def try_damage(made: MadeStore, whole: str, folder: Path, seed: int) -> tuple[str, str]:
    """Damage a copy and resume it; return what came of it in a word, and the details."""
    copy = replace(made, folder=folder / str(seed))
    shutil.copytree(made.folder, copy.folder)
    done = damage(copy.folder, random.Random(seed))
    try:
        try:
            return ("same" if resume(copy) == whole else "different"), done
        except DamagedStore:
            pass
        try:
            resume(copy, cuts=True, any_checkpoint=True)
        except DamagedStore as error:
            is_last_word = "--cut-damaged" not in str(error)
            return (
                "refused for good" if is_last_word else "advice without end"
            ), f"{done}: {error}"
        resume(copy, any_checkpoint=True)
        return "cut", done
    except Exception as error:  # noqa: BLE001 - it is what is looked for
        return "another error", f"{done}: {type(error).__name__}: {error}"
    finally:
        shutil.rmtree(copy.folder)


def main() -> None:
    """Damage, resume, count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--damages", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="fifty damages")
    given = parser.parse_args()
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        stores = [make_store(folder / str(prunes), prunes=prunes) for prunes in (False, True)]
        wholes = [whole_of(made, folder) for made in stores]
        for number in range(50 if given.quick else given.damages):
            which = number % 2
            seed = given.seed * 1_000_000 + number
            outcome, details = try_damage(stores[which], wholes[which], folder, seed)
            counts[outcome] += 1
            if outcome in BAD:
                print(f"{outcome}: {details}", flush=True)
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.most_common()))
    sys.exit(any(counts[outcome] for outcome in BAD))


BAD = ("different", "another error", "advice without end")


def whole_of(made: MadeStore, folder: Path) -> str:
    """Return what comes back of an undamaged copy."""
    copy = replace(made, folder=folder / "whole")
    shutil.copytree(made.folder, copy.folder)
    try:
        return resume(copy)
    finally:
        shutil.rmtree(copy.folder)


if __name__ == "__main__":
    main()
