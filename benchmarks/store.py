"""What recording a turn costs, by durability and by tokens. Prints a Markdown table; a minute.

    python benchmarks/store.py [--folder DIR]

The disk decides what `power` costs: pass a folder on the one that runs are kept on.
"""

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles

from agentrl.env import Action, Observation
from agentrl.message import Message, ToolCall
from agentrl.store.event import Exchange
from agentrl.store.settings import StoreSettings
from agentrl.store.store import Store
from agentrl.store.syncer import Durable
from agentrl.task import Task
from agentrl.trajectory import Node, Tree

TURNS = 1000
TRAJECTORIES = 10
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


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="where to write; the temporary folder if none")
    folder: Path | None = parser.parse_args().folder
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
