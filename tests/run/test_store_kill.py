"""A real process that records as fast as it can, and a real `kill -9` at random moments.

What it reports over a pipe, it has recorded before: none of that may be missing afterwards, no
group may be in the weights twice, and every restored trajectory goes on from its last turn.
"""

import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.store.reader import StoreReader
from agentrl.store.writer import StoreWriter

KILLS = 36
ENOUGH = 30
"""Exchanges that a slow writer reports before it is killed."""

WRITER = """
import json, os, random, sys
from pathlib import Path
from agentrl.env import Action, Observation
from agentrl.message import Message
from agentrl.events.kinds import EnvExchange
from agentrl.store.settings import StoreSettings
from agentrl.task import Task
from agentrl.trajectory import Finished, Leaf, Node, Tree
from tests.support.scripted_store import ScriptedStore, complete_groups, open_groups
from agentrl.runtime.atomic_files import write_json

def report(*line):
    os.write(1, (json.dumps(line) + "\\n").encode())

for line in sys.stdin:
    folder, seed = json.loads(line)
    if (child := os.fork()) == 0:
        break
    report("ended", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
else:
    sys.exit()
report("started", os.getpid())
folder = Path(folder)
draw = random.Random(seed)
durable = ["process", "interval", "power"][seed % 3]
saved = folder / "checkpoint.json"

def exchange(n):
    seen = Observation((Message("user", str(n)),))
    if n == 0:
        return EnvExchange.resetting(seen)
    return EnvExchange.stepping(Action(str(n)), (seen, 0.0, False, False, {}))

settings = StoreSettings(durable=durable, segment_bytes=200_000)
store = ScriptedStore.open(folder / "store", settings, resume=True)
checkpoint = {"position": 0, "step": 0, "weights": []}
if saved.exists():
    checkpoint = json.loads(saved.read_text())
step, weights = checkpoint["step"], checkpoint["weights"]
trees, live, waiting = {}, [], []
if store.position:
    state = store.restore(position=checkpoint["position"], step=step)
    waiting = [group.id for group in complete_groups(state)]
    for group in open_groups(state):
        trees[group.id] = group.tree
        live += [[group.id, t.id, t.at, len(t.exchanges)] for t in group.open_rollouts]
        for t in group.rollouts.values():
            report("restored", t.id, len(t.exchanges), t.status)
report("ready", store.position)

def trajectories_left(group):
    return [l for l in live if l[0] == group]

while True:
    while len(live) < 6:
        group = store.open_group(Task(prompt="q"), order=0, seed=0, size=2, step=step)
        trees[group] = Tree(Task(prompt="q"))
        for sample in range(2):
            live.append([group, store.begin(group, sample=sample, seed=0), None, 0])
            report("began", live[-1][1])
    for group in [g for g in trees if not trajectories_left(g)]:
        store.group_complete(group)
        waiting.append(group)
        del trees[group]
        report("complete", group)
    one = draw.choice(live)
    group, trajectory, at, n = one
    ids = tuple(range(draw.randrange(1, 400)))
    source = "prompt" if n == 0 else "sampled"
    own = dict(logprobs=(-0.5,) * len(ids), versions=(step,) * len(ids)) if n else {}
    node = trees[group].add(Node(parent=at, source=source, token_ids=ids, turn=n, **own))
    if n > 2 and draw.random() < 0.3:
        leaf = Leaf(node=node, outcome=Finished(1.0), sample=0)
        store.finish(trajectory, trees[group], leaf, exchange(n))
        live.remove(one)
    elif n > 1 and draw.random() < 0.1:
        child = store.fork(trajectory, trees[group], at, sample=9, seed=0, strategy="copy")
        live.append([group, child, at, n])
        report("exchanges", child, n)
        continue
    else:
        store.turn(trajectory, trees[group], node, exchange(n))
        one[2:] = [node, n + 1]
    report("exchanges", trajectory, n + 1)
    if len(waiting) >= 2 and draw.random() < 0.3:
        step += 1
        weights = weights + waiting
        store.trained(waiting, step=step)
        report("trained", step, waiting)
        waiting = []
        if draw.random() < 0.5:
            position = store.checkpoint(step)
            write_json(saved, {"position": position, "step": step, "weights": weights})
            report("checkpoint", step)
"""


@pytest.fixture
def writers() -> Iterator["subprocess.Popen[bytes]"]:
    """Return a process that forks a writer for every folder and seed it reads, one at a time.

    What writers report, and with what status they ended, goes through one pipe, in order.
    """
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", WRITER]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=env) as process:
        yield process


def reports_until_killed(
    writers: "subprocess.Popen[bytes]", folder: Path, seed: int
) -> tuple[list[list[object]], int]:
    """Start a writer, kill it at a random moment, and return its reports and the exit status."""
    draw = random.Random(seed)
    most = draw.choice([1, 3, draw.randrange(400), 10**9])
    left_s = draw.uniform(0.0, 0.15)
    assert writers.stdin is not None
    assert writers.stdout is not None
    writers.stdin.write(json.dumps([str(folder), seed]).encode() + b"\n")
    writers.stdin.flush()
    pipe = writers.stdout.fileno()
    data = read_until(pipe, b'"ready"')
    deadline = time.monotonic() + left_s
    while data.count(b"\n") < most and (
        time.monotonic() < deadline or data.count(b'"exchanges"') < ENOUGH
    ):
        if b'["ended"' in data:
            break
        if select.select([pipe], [], [], 0.005)[0]:
            data += os.read(pipe, 65536)
    if b'["ended"' not in data:
        os.kill(json.loads(data.split(b"\n")[0])[1], signal.SIGKILL)
        data += read_until(pipe, b'["ended"')
    *reports, (_, status) = map(json.loads, data.splitlines())
    return reports, status


def read_until(pipe: int, mark: bytes) -> bytes:
    """Return what comes until a whole line that has this mark, or the end of a writer."""
    data = b""
    while not data.endswith(b"\n") or (mark not in data and b'["ended"' not in data):
        more = os.read(pipe, 65536)
        assert more, "the process that forks writers has ended"
        data += more
    return data


def facts(reports: list[list[object]], kind: str) -> Iterator[list[object]]:
    return (rest for name, *rest in reports if name == kind)


@pytest.mark.slow
def test_nothing_reported_is_lost_and_nothing_trains_twice(
    tmp_path: Path, writers: "subprocess.Popen[bytes]"
) -> None:
    done: dict[object, int] = {}
    """Exchanges reported, by trajectory."""
    complete: set[object] = set()
    torn = 0
    seeds = random.Random(0).sample(range(10**6), KILLS)
    for seed in seeds:
        reports, status = reports_until_killed(writers, tmp_path, seed)
        assert status == -signal.SIGKILL, f"seed {seed}: the writer ended by itself"
        for trajectory, count, _ in facts(reports, "restored"):
            assert isinstance(count, int)
            assert count >= done.get(trajectory, 0), f"seed {seed}: turns of {trajectory} are lost"
        for trajectory, count in facts(reports, "exchanges"):
            assert isinstance(count, int)
            done[trajectory] = count
        for (trajectory,) in facts(reports, "began"):
            done.setdefault(trajectory, 0)
        complete |= {group for (group,) in facts(reports, "complete")}
        with StoreWriter.open(tmp_path / "store", resume=True) as store:
            torn += store.torn_bytes > 0
        check(tmp_path, done, complete)
    assert sum(done.values()) > 10 * KILLS
    assert len(complete) > 10
    print(f"{KILLS} kills, {sum(done.values())} exchanges, {len(complete)} groups, {torn} torn")  # noqa: T201


def check(folder: Path, done: dict[object, int], complete: set[object]) -> None:
    """Compare a store, after a kill, with what its writers had reported."""
    saved = folder / "checkpoint.json"
    checkpoint = json.loads(saved.read_text()) if saved.exists() else {}
    weights: list[int] = checkpoint.get("weights", [])
    assert len({*weights}) == len(weights), "a group trained twice"
    with StoreReader(folder / "store") as reader:
        found = {
            t.id: len(t.exchanges)
            for group in reader.groups()
            for t in reader.group(group).rollouts.values()
        }
        assert {t: n for t, n in done.items() if found.get(t, -1) < n} == {}  # pyright: ignore[reportArgumentType, reportCallIssue]
        known = {*reader.groups("complete", "trained")}
        assert complete <= known
        assert {*weights} == {*reader.find_trained(checkpoint.get("position", 0))}
